"""Requirements and sources of packages: what is asked of them gets to the nodes."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.api.environment.files import read_file
from jupyter_sky.api.environment.resolve import resolve
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.project.image import with_file
from jupyter_sky.providers.packages import sources_of
from jupyter_sky.providers.ssh.setup.packages.recipe import recipe_for
from tests.api.environment.test_files import written
from tests.installed import skip_without


@pytest.mark.parametrize(
    ("line", "requirement"),
    [
        ("./dist/own-1.2-py3-none-any.whl[dev]", "own[dev]==1.2"),
        ("dist/own-1.2-py3-none-any.whl ; python_version > '3'", "own==1.2; python_version > '3'"),
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


@pytest.mark.parametrize("line", ["numpy=2.1", "this is $$ not", "dist/gone-1.2.whl", "1: six"])
def test_a_line_that_is_no_requirement_is_named(tmp_path: Path, line: str) -> None:
    file = written(tmp_path, "requirements.txt", f"six\n{line}  # or so\n")
    with pytest.raises(sky.UsageError) as refused:
        read_file(file)
    assert str(refused.value).startswith(f"{file}: `{line}` is no requirement that pip takes, ")


def test_a_file_is_joined_to_what_the_image_has(tmp_path: Path) -> None:
    """In the same way where a cluster starts and where one is up."""
    kept, former = (written(tmp_path, f"{each}-1.0-py3-none-any.whl", "") for each in ("a", "own"))
    wheel = written(tmp_path, "dist/own-1.2-py3-none-any.whl", "")
    index = "https://wheels.example.org/simple"
    path = written(
        tmp_path, "requirements.txt", f"--extra-index-url {index}\n./dist/{wheel.name}\n"
    )
    image = sky.Image(like=str(path), pip_indexes=[index], wheels=[str(kept), str(former)])
    started, _ = resolve(image, [], [])
    up, _ = with_file(image, CellOptions(env=str(path)))
    for each in (started, up):
        assert each.wheels == (str(kept), str(wheel))
        assert [there.url for there in sources_of(each)] == [index]


def test_constraints_bind_what_nodes_get(tmp_path: Path) -> None:
    written(tmp_path, "limits.txt", "einops<0.9\n-c further.txt\n")
    written(tmp_path, "further.txt", "rich<15\n")
    path = written(tmp_path, "requirements.txt", "einops\n--constraint limits.txt\n")
    found = read_file(path)
    assert found.requirements == ["einops"]
    assert found.constraints == ["einops<0.9", "rich<15"]
    image, left_out = resolve(sky.Image(like=str(path)), [], [])
    assert not left_out
    assert 'constraint-dependencies = ["einops<0.9", "rich<15"]' in recipe_for(image).project


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
        "Requires-Dist: einops>=0.8\n"
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
