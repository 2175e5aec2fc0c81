"""Where modules are found on an import path."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgpack

from jupyter_sky.transport.templates.import_path import import_path, locations


def test_modules_are_found_where_python_finds_them(tmp_path: Path) -> None:
    modules = {"json": json, "msgpack": msgpack}
    found = locations(modules, sys.path)
    assert found == {
        name: str(Path(str(module.__file__)).parents[1]) for name, module in modules.items()
    }
    (tmp_path / "json.txt").touch()
    (tmp_path / "msgpack").mkdir()
    assert locations(modules, [str(tmp_path), *sys.path]) == found
    assert locations(modules, [str(tmp_path / "gone"), *sys.path]) == found
    (tmp_path / "msgpack" / "__init__.py").touch()
    (tmp_path / "json.py").touch()
    assert set(locations(modules, [str(tmp_path), *sys.path]).values()) == {str(tmp_path)}


def test_an_archive_may_have_everything(tmp_path: Path) -> None:
    archive = tmp_path / "some.zip"
    archive.touch()
    assert locations(["json"], [str(archive), *sys.path]) != locations(["json"], sys.path)


def test_an_import_path_has_each_entry_once_and_that_of_the_variables() -> None:
    assert import_path(["a", "b", "a"], {"PYTHONPATH": "b::c"}, ["c", "d"]) == ["a", "b", "c", "d"]
