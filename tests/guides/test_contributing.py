"""CONTRIBUTING.md names files and folders that are there."""

from __future__ import annotations

import re

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


def exists(name: str) -> bool:
    """Whether a path is there, from the repository's root, the package's, or one of its rooms'."""
    roots = [ROOT, ROOT / "jupyter_sky", *(ROOT / "jupyter_sky").iterdir()]
    roots += [path for path in (ROOT / "jupyter_sky").glob("*/*") if path.is_dir()]
    roots += [ROOT / "labextension", ROOT / "labextension" / "src"]
    return any((root / name).exists() for root in roots)
