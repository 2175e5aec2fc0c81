"""Files that say what an environment has: what nodes get of them, and what is said of the rest."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.api.environment import tools
from jupyter_sky.api.environment.files import read_file
from jupyter_sky.api.environment.resolve import resolve
from jupyter_sky.providers.packages import base_requirements
from jupyter_sky.providers.ssh.setup.packages.recipe import recipe_for
from tests.installed import skip_without

HERE = ".".join(map(str, sys.version_info[:2]))


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_requirements_are_read_with_files_that_they_name(tmp_path: Path) -> None:
    written(tmp_path, "more/base.txt", "einops>=0.8  # small\n")
    wheel = written(tmp_path, "dist/own-1.2-py3-none-any.whl", "")
    path = written(
        tmp_path,
        "requirements.txt",
        "# what we need\n-r more/base.txt\nrich \\\n  ==14.0 --hash=sha256:abc\n"
        "--extra-index-url https://wheels.example.org/simple\n./dist/own-1.2-py3-none-any.whl\n"
        "torch==2.9.1 ; sys_platform == 'linux'\n-c limits.txt\n",
    )
    found = read_file(path)
    assert found.requirements == [
        "einops>=0.8",
        "rich ==14.0",
        "own==1.2",
        "torch==2.9.1 ; sys_platform == 'linux'",
    ]
    assert found.indexes == [sky.PipIndex("https://wheels.example.org/simple")]
    assert found.wheels == [wheel]
    assert found.left_out == ["requirements.txt: `-c limits.txt` is not used on nodes."]


@pytest.mark.parametrize(
    ("text", "requirements"),
    [
        (b"\xef\xbb\xbfeinops\r\nrich\r\n", ["einops", "rich"]),  # as editors of Windows
        ("einops\r\nrich".encode("utf-16"), ["einops", "rich"]),  # as `>` of PowerShell
        (b"-rmore/base.txt", ["einops>=0.8"]),
        (b"einops --config-settings=x=1", ["einops"]),
        (
            b"git+https://git.example.org/tool.git@v1#egg=tool&subdirectory=py",
            ["tool @ git+https://git.example.org/tool.git@v1#subdirectory=py"],
        ),
        (
            b"-e git+https://git.example.org/tool.git#egg=tool ; sys_platform == 'linux'",
            ["tool @ git+https://git.example.org/tool.git ; sys_platform == 'linux'"],
        ),
        (
            b"https://example.org/page-1.0-py3-none-any.whl",
            ["page @ https://example.org/page-1.0-py3-none-any.whl"],
        ),
    ],
)
def test_lines_are_read_as_pip_reads_them(
    tmp_path: Path, text: bytes, requirements: list[str]
) -> None:
    written(tmp_path, "more/base.txt", "einops>=0.8\n")
    path = tmp_path / "requirements.txt"
    path.write_bytes(text)
    assert read_file(path).requirements == requirements


def test_an_index_is_read_with_its_variables_and_without_what_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_TOKEN", "t0ken")
    text = "-i https://me:${OWN_TOKEN}@wheels.example.org/simple --trusted-host wheels.example.org"
    found = read_file(written(tmp_path, "requirements.txt", f"{text}\neinops\n"))
    assert found.indexes == [sky.PipIndex("https://me:t0ken@wheels.example.org/simple")]
    assert found.left_out == [
        "requirements.txt: `--trusted-host wheels.example.org` is not used on nodes."
    ]


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the user's that is installed from source (editable)."""
    folder = tmp_path / "own"
    folder.mkdir()
    about = "own_tools-1.0.dist-info"
    requires = (
        "Requires-Dist: einops>=0.8\n"
        'Requires-Dist: rich; extra == "shown"\n'
        'Requires-Dist: uv; python_version > "3" and extra == "all"\n'
        'Requires-Dist: own-tools[shown]; extra == "all"\n'
        'Requires-Dist: pytest; extra == "dev"\n'
    )
    text = f"Metadata-Version: 2.1\nName: own-tools\nVersion: 1.0\n{requires}"
    written(tmp_path / "site", f"{about}/METADATA", text)
    place = f'{{"url": "{folder.as_uri()}", "dir_info": {{"editable": true}}}}'
    written(tmp_path / "site", f"{about}/direct_url.json", place)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


@pytest.mark.parametrize(
    ("text", "requirements"),
    [
        ("-e own", ["einops>=0.8"]),
        ("-e ./own[shown]", ["einops>=0.8", "rich"]),
        ("own/", ["einops>=0.8"]),
        ("own-tools[all] @ file://{folder}", ["einops>=0.8", "rich", 'uv ; python_version > "3"']),
    ],
)
def test_of_a_package_that_is_sent_as_source_nodes_get_what_it_needs(
    own_package: Path, text: str, requirements: list[str]
) -> None:
    above = own_package.parent
    text = text.replace("{folder}", str(own_package))
    found = read_file(written(above, "requirements.txt", text))
    assert (found.needed, found.requirements, found.wheels) == (requirements, [], [])
    project = '[project]\nname = "demo"\ndependencies = ["own-tools"]\n[tool.uv.sources]\n'
    for source in ("path = 'own', editable = true", "workspace = true"):
        path = written(above, "pyproject.toml", f"{project}own-tools = {{ {source} }}\n")
        assert read_file(path).needed == ["einops>=0.8"]


_BACKEND = """\
import zipfile
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    with Path(__file__).parent.with_suffix(".builds").open("a") as builds:
        builds.write("built ")
    name = "made-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder, name), "w") as wheel:
        about = "made-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\\nName: made\\nVersion: 1.0\\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(f"{about}/RECORD", "")
    return name
"""


def test_a_folder_is_built_again_only_when_it_has_changed(tmp_path: Path) -> None:
    skip_without("uv")
    folder = tmp_path / "made"
    written(
        folder,
        "pyproject.toml",
        '[project]\nname = "made"\nversion = "1.0"\n[build-system]\nrequires = []\n'
        'build-backend = "backend"\nbackend-path = ["."]\n',
    )
    written(folder, "backend.py", _BACKEND)
    path = written(tmp_path, "requirements.txt", "./made[cli] ; sys_platform == 'linux'")
    found = read_file(path)
    assert found.requirements == ["made[cli]==1.0; sys_platform == 'linux'"]
    assert read_file(path).wheels == found.wheels
    assert (tmp_path / "made.builds").read_text() == "built "
    # Extras and where it applies go along with a wheel that is sent.
    image, _ = resolve(sky.Image(like=str(path)), [], [])
    recipe = recipe_for(image).project
    assert "made[cli] @ file://@wheels@/made-1.0-py3-none-any.whl ; sys_platform" in recipe
    written(folder, "more.py", "X = 1\n")
    assert read_file(path).wheels != found.wheels
    assert (tmp_path / "made.builds").read_text() == "built built "


def test_what_conda_has_built_is_taken_in_the_version_of_here(tmp_path: Path) -> None:
    skip_without("rich")
    text = "rich @ file:///home/conda/feedstock_root/build_artifacts/rich_1/work\n"
    found = read_file(written(tmp_path, "requirements.txt", text))
    assert found.requirements == [f"rich=={version('rich')}"]
    assert "rich is taken from an index as" in found.left_out[0]


LOCK = """
version = 1
revision = 3
requires-python = ">=3.11"

[[package]]
name = "demo"
version = "0.1.0"
source = { virtual = "." }
dependencies = [{ name = "einops" }, { name = "greeting" }]

[package.metadata]
requires-dist = [{ name = "einops" }, { name = "greeting" }]

[[package]]
name = "einops"
version = "0.8.1"
source = { registry = "https://pypi.org/simple" }
sdist = { url = "https://files.example.org/einops-0.8.1.tar.gz", hash = "sha256:{0}" }

[[package]]
name = "greeting"
version = "2.0"
source = { registry = "https://wheels.example.org/simple" }
sdist = { url = "https://wheels.example.org/greeting-2.0.tar.gz", hash = "sha256:{0}" }
"""


def test_a_lock_of_uv_gives_its_versions_and_their_indexes(tmp_path: Path) -> None:
    skip_without("uv")
    written(
        tmp_path,
        "pyproject.toml",
        '[project]\nname = "demo"\nversion = "0.1.0"\nrequires-python = ">=3.11"\n'
        'dependencies = ["einops", "greeting"]\n',
    )
    found = read_file(written(tmp_path, "uv.lock", LOCK.replace("{0}", 64 * "0")))
    assert found.requirements == ["einops==0.8.1", "greeting==2.0"]
    assert found.indexes == [sky.PipIndex("https://wheels.example.org/simple", ["greeting"])]
    with pytest.raises(sky.UsageError, match="uv cannot use .*uv.lock: "):
        read_file(written(tmp_path, "uv.lock", "version = 1\n[[package]\n"))


def test_why_a_package_is_not_built_is_said_as_its_compiler_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without("uv")
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "home"))
    written(
        tmp_path,
        "pyproject.toml",
        '[project]\nname = "own"\nversion = "1"\n[build-system]\nrequires = []\n'
        'build-backend = "backend"\nbackend-path = ["."]\n',
    )
    compiler = "own.c:1:10: fatal error: cuda.h: No such file or directory"
    written(
        tmp_path,
        "backend.py",
        "def build_wheel(*words, **more):\n"
        f"    print('building', {compiler!r}, sep='\\n')\n"
        "    raise SystemExit(\"error: Command ['gcc', 'own.c'] failed\")\n",
    )
    with pytest.raises(sky.UsageError) as caught:
        tools.build(tmp_path)
    assert f"{caught.value}" == f"uv cannot use {tmp_path}: {compiler}."
    assert not [*(tmp_path / "home" / "wheels").iterdir()]


def test_a_project_gives_what_it_depends_on(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "pyproject.toml",
        '[project]\nname = "demo"\ndependencies = ["einops>=0.8", "torch", '
        '"tool[cli]>=1 ; sys_platform == \'linux\'", "page"]\n'
        '[[tool.uv.index]]\nname = "cpu"\nurl = "https://w.example.org/cpu"\nexplicit = true\n'
        '[tool.uv.sources]\ntorch = { index = "cpu" }\n'
        'tool = { git = "https://git.example.org/a.git", tag = "v1", subdirectory = "py" }\n'
        'page = { url = "https://example.org/page-1.0-py3-none-any.whl" }\n',
    )
    found = read_file(path)
    assert found.requirements == [
        "einops>=0.8",
        "torch",
        "tool[cli] @ git+https://git.example.org/a.git@v1#subdirectory=py"
        ' ; sys_platform == "linux"',
        "page @ https://example.org/page-1.0-py3-none-any.whl",
    ]
    assert found.indexes == [sky.PipIndex("https://w.example.org/cpu", ["torch"])]


def test_of_an_environment_of_conda_what_pip_has_not_is_named(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "environment.yml",
        "name: demo\nchannels: [conda-forge]\ndependencies:\n"
        "  - python=3.8\n  - pip\n  - numpy=1.26\n  - conda-forge::rich=14.0.0=h_1\n"
        "  - pytorch>=2.4\n  - ffmpeg\n  - cudatoolkit=12\n  - pip:\n    - einops==0.8.1\n",
    )
    skip_without("rich")
    found = read_file(path)
    assert found.requirements == ["numpy==1.26.*", "rich==14.0.0", "torch>=2.4", "einops==0.8.1"]
    assert found.left_out == [
        f"environment.yml: nodes do without python 3.8.* (nodes have the notebook's {HERE}), "
        "ffmpeg and cudatoolkit, which conda installs and pip may not: `--pip NAME` installs "
        "those that pip has."
    ]


@pytest.mark.parametrize(
    ("line", "requirement"),
    [
        ("rich 14.0", "rich==14.0"),
        ("rich 14.0.*", "rich==14.0.*"),
        ("rich =14", "rich==14.*"),
        ("rich==14.0=py_1", "rich==14.0"),
        ("rich >=13.1, <15", "rich>=13.1,<15"),
        ("rich >=13.1,<15 py_1", "rich>=13.1,<15"),
        ("rich!=14.0", "rich!=14.0"),
    ],
)
def test_versions_of_conda_are_read_as_conda_reads_them(
    tmp_path: Path, line: str, requirement: str
) -> None:
    skip_without("rich")
    path = written(tmp_path, "environment.yml", f"dependencies:\n - '{line}'\n - python>=3.8\n")
    found = read_file(path)
    assert (found.requirements, found.left_out) == ([requirement], [])


def test_a_version_of_conda_that_pip_has_not_is_said(tmp_path: Path) -> None:
    skip_without("rich")
    found = read_file(written(tmp_path, "environment.yml", "dependencies: [rich=13|14]"))
    assert found.requirements == ["rich"]
    assert found.left_out == [
        "environment.yml: nodes get any version of rich: what conda takes from `rich=13|14`, pip "
        "does not know."
    ]


def test_what_is_named_replaces_what_a_file_says(tmp_path: Path) -> None:
    path = written(tmp_path, "requirements.txt", "einops==0.7\nrich==14.0\n")
    image, _ = resolve(sky.Image(pip=["einops==0.8.1", "rich"], like=str(path)), [], [])
    assert base_requirements(image) == ["rich==14.0"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("notes.md", "", "notes.md says nothing of packages that can be read: name a `uv.lock`"),
        ("pyproject.toml", "[tool.x]", "pyproject.toml has no \\[project\\]"),
        ("pyproject.toml", "[project", "pyproject.toml is no TOML"),
        ("environment.yml", "a: [", "environment.yml is no YAML"),
        ("environment.yml", "- a", "environment.yml has no list of `dependencies`"),
        ("environment.yml", "dependencies: [pip: einops]", "`pip:` should have a list below it"),
        ("pyproject.toml", '[project]\ndependencies = "einops"', "should be a list of texts"),
        ("pyproject.toml", '[project]\ndependencies = ["a=1"]', "'a=1' is no requirement"),
        ("poetry.lock", "", "poetry.lock says nothing of packages that can be read"),
        ("requirements.txt", "-r requirements.txt", "names itself with `-r`: take the line out"),
        ("requirements.txt", "git+https://a.example.org/b", "b needs the name of its package: wr"),
        ("requirements.txt", "./no-1-py3-none-any.whl", "there is no wheel .*no-1-py3-none-any"),
        ("requirements.txt", "-e nowhere", "there is no folder .*nowhere to take along"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    with pytest.raises(sky.UsageError, match=sentence):
        read_file(written(tmp_path, name, text))
    with pytest.raises(sky.UsageError, match="there is no file .*uv.lock: name a `uv.lock`"):
        read_file(tmp_path / "nowhere" / "uv.lock")
