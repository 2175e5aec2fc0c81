"""CONTRIBUTING.md names files and folders that are there, and pins that any Python can have."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata

from packaging.specifiers import SpecifierSet

from tests.paths import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
ROOMS = ("notebook", "plugins", "api", "cluster", "providers", "serialization", "transport")
ROOMS += ("node", "server", "analysis")


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"[\w./]+(?:/|\.py|\.ts)(?=[`:,\s]|$)", TEXT, re.MULTILINE))
    assert len(named) > 50
    missing = [name for name in named if not exists(name)]
    assert missing == []


def test_the_map_has_every_folder_with_its_files() -> None:
    package = ROOT / "jupyter_sky"
    listed = TEXT.partition("## The map")[2].partition("## The way of a cell")[0]
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    assert rooms == set(ROOMS)
    for path in package.glob("*/*/__init__.py"):
        assert f"  {path.parent.name}/ " in listed, path.parent
    for room in ROOMS:
        assert f"\n{room}/ " in listed


def test_what_is_pinned_is_there_for_the_oldest_python() -> None:
    """Debian's Python stays at 3.11.2; some packages want a later one of its minor version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert len(pinned) > 100
    refused = {}
    for name in pinned:
        try:
            found = metadata(name)
        except PackageNotFoundError:  # of an extra that is not installed
            continue
        wanted = found.get("Requires-Python") or ""
        if not SpecifierSet(wanted).contains(oldest):
            refused[name] = wanted
    assert refused == {}


def exists(name: str) -> bool:
    """Whether a path is there, from the repository's root, the package's, or one of its rooms'."""
    roots = [ROOT, ROOT / "jupyter_sky", *(ROOT / "jupyter_sky").iterdir()]
    roots += [path for path in (ROOT / "jupyter_sky").glob("*/*") if path.is_dir()]
    roots += [ROOT / "labextension", ROOT / "labextension" / "src"]
    return any((root / name).exists() for root in roots)
