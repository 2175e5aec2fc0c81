"""Records on this computer's disk which names the runs of a cluster have asked their nodes for.

Unpickling a value runs code that its node has chosen. A kernel that takes over a run from another
one therefore unpickles only the names recorded here, whatever a node says that it was asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from jupyter_sky.paths import home


def record(cluster: str, run: str, names: Mapping[int, Sequence[str]]) -> None:
    """Record the names that each rank is asked for by a run that is about to begin.

    The one before is forgotten: runs take turns, and nodes offer the last one only.
    """
    path = _path(cluster, run)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", opener=_private) as file:
        json.dump({rank: list(each) for rank, each in names.items()}, file)
    for other in path.parent.iterdir():
        if other != path:
            other.unlink(missing_ok=True)


def find(cluster: str, run: str) -> dict[int, list[str]]:
    """Return the names that each rank is asked for; none, where no kernel of here has asked."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_path(cluster, run).read_bytes())
        return {int(rank): list(map(str, names)) for rank, names in found.items()}
    return {}


def forget(cluster: str) -> None:
    """Forget the runs of a cluster of which nothing is left."""
    with contextlib.suppress(ValueError):
        shutil.rmtree(_folder(cluster), ignore_errors=True)


def _folder(cluster: str) -> Path:
    return home() / "asked" / _file_name(cluster)


def _path(cluster: str, run: str) -> Path:
    return _folder(cluster) / f"{_file_name(run)}.json"


def _file_name(identity: str) -> str:
    """Return an id as a file name: that of a run may come from a node."""
    if not identity.isalnum():
        raise ValueError(f"{identity!r} is no id")
    return identity


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
