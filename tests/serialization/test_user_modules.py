"""The user's own modules are told from others, and sent without the data beside them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_sky.serialization import user_modules
from jupyter_sky.serialization.user_modules import (
    LARGE,
    ImportPaths,
    SourceTree,
    is_user_code,
    source_location,
    source_trees,
    user_source_file,
)

Write = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules are imported from."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (file := getattr(sys.modules[name], "__file__", None)) and str(tmp_path) in file:
            del sys.modules[name]


@pytest.fixture
def write(folder: Path) -> Write:
    def write(**files: str | bytes) -> None:
        for name, content in files.items():
            path = folder / (name.replace("__", "/").replace("/init", "/__init__") + ".py")
            put(path, content)

    return write


def put(path: Path, content: str | bytes = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def packed(*names: str) -> dict[str, set[str]]:
    return {tree.name: set(tree.files) for tree in source_trees(names)}


# Which they are


def test_own_is_what_is_neither_installed_nor_of_the_library(folder: Path, write: Write) -> None:
    write(helpers="", package__init="")
    assert source_location("helpers") == folder / "helpers.py"
    assert source_location("package") == folder / "package"
    for name in ("json", "sys", "pytest", "numpy", "jupyter_sky"):
        assert source_location(name) is None
    assert source_location("there_is_no_such_module") is None
    assert source_location("__main__") is None


def test_a_module_of_an_environment_in_the_folder_is_installed(folder: Path) -> None:
    assert not is_user_code(str(folder / ".venv/lib/python3.12/site-packages/torch/__init__.py"))
    assert not is_user_code(str(folder / "env/lib/site-packages"))
    assert is_user_code(str(folder / "site_packages_of_mine/x.py"))


@pytest.mark.parametrize("entry", ["{}/packages", "{}/packages/", "../packages"])
def test_a_package_in_a_folder_that_pip_was_given_is_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """As with `pip install --target`, where `PYTHONPATH` names the folder."""
    monkeypatch.syspath_prepend(entry.format(folder))
    put(folder / "packages/dep/core.py")
    put(folder / "packages/single.py")
    put(folder / "packages/mine.py")
    (folder / "notebooks").mkdir()
    monkeypatch.chdir(folder / "notebooks")
    record = "dep/core.py,sha256=x,0\nsingle.py,,\n../../bin/dep,,\ndep-1.0.dist-info/RECORD,,\n"
    put(folder / "packages/dep-1.0.dist-info/RECORD", record)
    assert not is_user_code(str(folder / "packages/dep/core.py"))
    assert not is_user_code(str(folder / "packages/single.py"))
    assert is_user_code(str(folder / "packages/mine.py"))  # beside them
    assert source_location("dep") is None
    mine = source_location("mine")
    assert mine is not None
    assert mine.resolve() == folder / "packages/mine.py"


def test_a_module_is_own_where_the_search_path_has_what_is_no_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `sys.path.append(os.environ.get("ROOT"))`: Python skips it."""
    monkeypatch.setattr(sys, "path", [*sys.path, None, 5])
    put(folder / "mine.py")
    assert is_user_code(str(folder / "mine.py"))


def test_a_module_is_own_whose_notebook_has_no_working_folder_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("")
    put(folder / "mine.py")
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    assert is_user_code(str(folder / "mine.py"))


def test_an_editable_package_is_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder / "project/src/tool/__init__.py", "x = 1")
    monkeypatch.syspath_prepend(str(folder / "project/src"))
    assert source_location("tool") == folder / "project/src/tool"
    tool = importlib.import_module("tool")
    assert user_source_file(tool) == folder / "project/src/tool/__init__.py"


def test_a_package_without_init_is_own(folder: Path) -> None:
    put(folder / "spaced/part.py")
    assert source_location("spaced") == folder / "spaced"


# How they are packed


def test_a_file_travels_alone_and_a_package_as_a_whole(folder: Path, write: Write) -> None:
    write(helpers="", package__init="", package__part="", package__deep__inner="")
    put(folder / "beside.csv", "1,2")
    put(folder / "package/config.json", "{}")
    assert packed("helpers.f", "package.part") == {
        "helpers": {"helpers.py"},
        "package": {
            "package/__init__.py",
            "package/config.json",
            "package/deep/inner.py",
            "package/part.py",
        },
    }


def test_data_and_checkpoints_stay_where_they_are(folder: Path, write: Write) -> None:
    write(package__init="")
    for path in (
        *("package/.git/config", "package/__pycache__/x.pyc", "package/.hidden"),
        *("package/env/pyvenv.cfg", "package/env/lib/x.py", "package/node_modules/x.js"),
    ):
        put(folder / path)
    put(folder / "package/model.pt", bytes(LARGE + 1))
    put(folder / "package/data/set.bin", bytes(LARGE + 1))
    put(folder / "package/table.csv", bytes(LARGE))
    assert packed("package") == {"package": {"package/__init__.py", "package/table.csv"}}


def test_a_package_with_a_data_set_in_it_is_sent_without(
    folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(package__init="")
    put(folder / "package/config.json", b"{}")
    for number in range(4):
        put(folder / f"package/train/{number}.jpg", bytes(LARGE))
    monkeypatch.setattr(user_modules, "DATA", 2 * LARGE)
    config = {"package/__init__.py", "package/config.json"}
    assert packed("package") == {"package": {*config, "package/train/0.jpg"}}


def test_a_file_that_cannot_be_read_stays_where_it_is(
    folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program's, or one that is removed meanwhile."""
    write(package__init="")
    put(folder / "package/out.json", b"{}")
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "out.json":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert packed("package") == {"package": {"package/__init__.py"}}


def test_what_they_import_comes_along(folder: Path, write: Write) -> None:
    write(
        first="import json, second.part as p\n\ndef f():\n    import third",
        second__init="from . import part",
        second__part="import torch",
        third="from first import f",
        fourth="",
    )
    assert packed("first").keys() == {"first", "second", "third"}


def test_a_file_that_does_not_compile_is_packed_all_the_same(folder: Path, write: Write) -> None:
    write(broken="def f(:")
    assert packed("broken") == {"broken": {"broken.py"}}


def test_a_tree_changes_with_its_files(folder: Path, write: Write) -> None:
    write(helpers="x = 1")
    [before] = source_trees(["helpers"])
    [same] = source_trees(["helpers"])
    write(helpers="x = 22")
    [after] = source_trees(["helpers"])
    assert before == same and before.digest == same.digest
    assert after.files["helpers.py"] == b"x = 22"
    assert after.digest != before.digest


# How they arrive


def test_a_tree_is_imported_where_it_is_installed(folder: Path) -> None:
    store = folder / "store"
    store.mkdir()
    SourceTree("sent", {"sent/__init__.py": b"", "sent/part.py": b"x = 1"}).install(store)
    assert importlib.import_module("sent.part").x == 1
    assert str(importlib.import_module("sent").__file__).startswith(str(store))


def test_a_new_version_takes_the_place_of_the_former(folder: Path) -> None:
    store = folder / "store"
    store.mkdir()
    files = {"moved/__init__.py": b"x = 1", "moved/part.py": b"y = 1"}
    SourceTree("moved", files).install(store)
    module, part = importlib.import_module("moved"), importlib.import_module("moved.part")
    entries = len(sys.path)
    newer = {**files, "moved/__init__.py": b"x = 2", "moved/more.py": b"z = 3"}
    SourceTree("moved", newer).install(store)
    assert len(sys.path) == entries
    assert (module.x, part.y) == (1, 1)  # to load them anew is up to the rank
    assert importlib.reload(module).x == 2
    assert importlib.import_module("moved.more").z == 3
    assert Path(str(part.__file__)).read_text() == "y = 1"
    SourceTree("moved", files).install(store)  # and back
    assert importlib.reload(module).x == 1


def test_a_place_is_where_the_notebook_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    place = ImportPaths.here()
    assert place.path == (str(folder), "/elsewhere")
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "path", ["/own", "/elsewhere"])
    place.install(folder)
    assert Path.cwd() == folder
    assert sys.path == [str(folder), "/elsewhere", "/own"]
