"""Files that say what an environment has: what nodes get of them, and what is said of the rest."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.api.environment import tools
from jupyter_sky.api.environment.files import read_file
from jupyter_sky.api.environment.resolve import resolve
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.providers.packages import base_requirements
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
    ("line", "requirement"),
    [
        ("./dist/own-1.2-py3-none-any.whl[dev]", "own[dev]==1.2"),
        ("dist/own-1.2-py3-none-any.whl ; python_version > '3'", "own==1.2 ; python_version > '3'"),
        ("own[dev] @ file://{0}/dist/own-1.2-py3-none-any.whl", "own[dev]==1.2"),
        ("file:dist/own-1.2-py3-none-any.whl", "own==1.2"),
        ("git+https://example.org/own.git@v1#egg=own", "own @ git+https://example.org/own.git@v1"),
        (
            "-e git+https://example.org/all.git#subdirectory=own&egg=own ; python_version > '3'",
            "own @ git+https://example.org/all.git#subdirectory=own ; python_version > '3'",
        ),
        (
            "https://example.org/own-1.2-py3-none-any.whl",
            "own @ https://example.org/own-1.2-py3-none-any.whl",
        ),
        ("own @ https://example.org/own.zip", "own @ https://example.org/own.zip"),
        ("own @ https://u:${OWN_TOKEN}@e.org/own.zip", "own @ https://u:abc@e.org/own.zip"),
        (
            "own @ https://u:${OWN_NOTHING}@e.org/o.zip",
            "own @ https://u:${OWN_NOTHING}@e.org/o.zip",
        ),
        ("-rmore.txt", "own>=1"),
        ("\ufeffown>=1", "own>=1"),
    ],
)
def test_a_line_is_read_as_pip_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, requirement: str
) -> None:
    monkeypatch.setenv("OWN_TOKEN", "abc")
    monkeypatch.delenv("OWN_NOTHING", raising=False)
    written(tmp_path, "more.txt", "own>=1\n")
    wheel = written(tmp_path, "dist/own-1.2-py3-none-any.whl", "")
    found = read_file(written(tmp_path, "requirements.txt", line.replace("{0}", str(tmp_path))))
    assert found.requirements == [requirement]
    assert found.wheels == ([wheel] if "==1.2" in requirement else [])
    assert found.left_out == []


def test_options_of_a_requirement_are_left_out_and_said(tmp_path: Path) -> None:
    found = read_file(written(tmp_path, "requirements.txt", "own>=1 --config-settings=a=b\n"))
    assert found.requirements == ["own>=1"]
    assert found.left_out == ["requirements.txt: `--config-settings=a=b` is not used on nodes."]


def test_nodes_get_what_an_editable_package_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source is sent by the cells that import it; what it imports has to be installed."""
    installed, source = tmp_path / "installed", tmp_path / "own"
    source.mkdir()
    written(
        installed,
        "own-1.2.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: own\nVersion: 1.2\nProvides-Extra: dev\n"
        "Requires-Dist: einops>=0.8\nRequires-Dist: colorama; sys_platform == 'win32'\n"
        "Requires-Dist: rich[jupyter]; extra == 'dev'\nRequires-Dist: numpy; extra == 'more'\n",
    )
    written(
        installed,
        "own-1.2.dist-info/direct_url.json",
        f'{{"url": "{source.as_uri()}", "dir_info": {{"editable": true}}}}',
    )
    monkeypatch.syspath_prepend(installed)
    plain = read_file(written(tmp_path, "requirements.txt", "-e ./own\n"))
    assert plain.needed == ["einops>=0.8"]
    with_extra = read_file(written(tmp_path, "requirements.txt", "-e ./own[dev]\n"))
    assert with_extra.needed == ["einops>=0.8", "rich[jupyter]"]
    assert not with_extra.requirements and not with_extra.wheels
    # A framework of a plugin has the notebook's version all the same.
    skip_without("rich")
    framework = Plugin("own", preload=("rich",))
    image, _ = resolve(sky.Image(like=str(tmp_path / "requirements.txt")), [framework], [])
    version = importlib.metadata.version("rich")
    assert image.pins == ("einops>=0.8", "rich[jupyter]", f"rich=={version}")


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


def test_a_project_gives_what_it_depends_on(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "pyproject.toml",
        '[project]\nname = "demo"\ndependencies = ["einops>=0.8", "torch", "tool", "page"]\n'
        '[[tool.uv.index]]\nname = "cpu"\nurl = "https://w.example.org/cpu"\nexplicit = true\n'
        '[tool.uv.sources]\ntorch = { index = "cpu" }\n'
        'tool = { git = "https://git.example.org/tool.git", tag = "v1" }\n'
        'page = { url = "https://example.org/page-1.0-py3-none-any.whl" }\n',
    )
    found = read_file(path)
    assert found.requirements == [
        "einops>=0.8",
        "torch",
        "tool @ git+https://git.example.org/tool.git@v1",
        "page @ https://example.org/page-1.0-py3-none-any.whl",
    ]
    assert found.indexes == [sky.PipIndex("https://w.example.org/cpu", ["torch"])]


def test_a_source_of_a_project_keeps_what_is_asked_of_it(tmp_path: Path) -> None:
    wheel = written(tmp_path, "dist/own-1.2-py3-none-any.whl", "")
    path = written(
        tmp_path,
        "pyproject.toml",
        "[project]\nname = 'demo'\n"
        "dependencies = ['own[dev]>=1', 'part[all] ; python_version > \"3\"', 'zipped[x]']\n"
        "[tool.uv.sources]\nown = { path = 'dist/own-1.2-py3-none-any.whl' }\n"
        "part = { git = 'https://example.org/all.git', tag = 'v1', subdirectory = 'part' }\n"
        "zipped = { url = 'https://example.org/zipped.zip' }\n",
    )
    found = read_file(path)
    assert found.requirements == [
        "own[dev]==1.2",
        'part[all] @ git+https://example.org/all.git@v1#subdirectory=part ; python_version > "3"',
        "zipped[x] @ https://example.org/zipped.zip",
    ]
    assert found.wheels == [wheel]


def test_a_folder_is_built_again_only_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is read for each cell that names it."""

    def build(words: list[str], folder: Path, what: str) -> str:
        (folder / "build").touch()  # as builds leave files
        written(Path(words[words.index("--out-dir") + 1]), "own-1.2-py3-none-any.whl", "")
        return ""

    monkeypatch.setattr(tools, "_uv", build)
    module = written(tmp_path, "own/own.py", "WORD = 1")
    path = written(tmp_path, "requirements.txt", "./own\n")
    [first] = read_file(path).wheels
    [again] = read_file(path).wheels
    assert again == first
    module.write_text("WORD = 'other'")
    [other] = read_file(path).wheels
    assert other != first
    other.unlink()
    assert read_file(path).wheels[0].is_file()


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
        ("requirements.txt", "-r requirements.txt", "requirements.txt, which names it: leave one"),
        (
            "requirements.txt",
            "git+https://u:secret@example.org/own",
            "needs the name of its package: write `NAME @ git.https://u?:?[*.]+@example.org/own`",
        ),
        ("requirements.txt", "-e nowhere", "there is no folder .*nowhere to take along"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    with pytest.raises(sky.UsageError, match=sentence):
        read_file(written(tmp_path, name, text))
    with pytest.raises(sky.UsageError, match="there is no file .*uv.lock: name a `uv.lock`"):
        read_file(tmp_path / "nowhere" / "uv.lock")
