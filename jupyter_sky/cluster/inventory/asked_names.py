"""What the runs of a cluster were asked for, on this computer's disk while they go on.

To unpickle a value is to run what its node put into it, so a kernel that takes up a run of another
one does that for what stands here only, and not for what a node says that it was asked for.
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
    """Record the names that each rank is asked for by a run that is about to begin."""
    path = _path(cluster, run)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", opener=_private) as file:
        json.dump({rank: list(each) for rank, each in names.items()}, file)


def find(cluster: str, run: str) -> dict[int, list[str]]:
    """Return the names that each rank is asked for; none, where no kernel of here has asked."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_path(cluster, run).read_bytes())
        return {int(rank): list(map(str, names)) for rank, names in found.items()}
    return {}


def forget(cluster: str, run: str) -> None:
    """Forget a run whose end a kernel has seen."""
    with contextlib.suppress(OSError):
        _path(cluster, run).unlink()


def forget_all(cluster: str) -> None:
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
