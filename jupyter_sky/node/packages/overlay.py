"""The folder of packages that were added to a cluster after its start.

The environment of a node is shared: on this computer with the notebook, elsewhere with clusters
that need the same packages. Later additions belong to one cluster. They are installed into a new
folder each time, and a link that all ranks have on their import path is then switched to it: a rank
never sees half of an installation, an interrupted one leaves no trace, and one that is done can be
undone, as long as the former folder is there.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

# The name marks its modules as installed packages, as opposed to the user's own code.
_NAME = "site-packages"


def link(folder: Path) -> Path:
    """Return the link from which ranks import, for the agent whose files are in ``folder``."""
    return folder / "packages" / _NAME


def prepare(folder: Path) -> Path:
    """Make the link, with an empty folder, and return its path."""
    place = link(folder)
    if not place.is_symlink():
        place.parent.mkdir(mode=0o700, exist_ok=True)
        switch(folder, new_folder(folder))
    return place


def add_to_path(folder: Path) -> None:
    """Let this process and its children import from the link before installed packages."""
    place = str(prepare(folder))
    others = [path for path in sys.path if path != place]
    names = [Path(path).name for path in others]
    first = next((n for n, name in enumerate(names) if name in _INSTALLED), len(others))
    sys.path[:] = [*others[:first], place, *others[first:]]
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    os.environ["PYTHONPATH"] = os.pathsep.join([*inherited, place])


def new_folder(folder: Path) -> Path:
    """Return a new folder to install into."""
    return Path(tempfile.mkdtemp(prefix="v", dir=folder / "packages"))


def switch(folder: Path, new: Path) -> Path | None:
    """Let ranks import from another folder, in one step; return the former one."""
    place = link(folder)
    former = place.parent / place.readlink() if place.is_symlink() else None
    part = place.with_name(f"{new.name}.link")
    part.symlink_to(new.name)
    part.replace(place)
    return former


def remove(former: Path | None) -> None:
    """Remove a folder from which ranks do not import."""
    if former is not None:
        shutil.rmtree(former, ignore_errors=True)


_INSTALLED = ("site-packages", "dist-packages")
