"""Records of each cluster's rented resources, on the user's disk, by id.

Searching by tags needs permissions that may be missing, and answers that may not come. Ids are
recorded here as soon as AWS returns them, and are ended first, whether or not a search succeeds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from jupyter_sky.providers.aws.local_store import folder


def note(identity: str, ids: Iterable[str]) -> None:
    """Add ids of instances and security groups to the record of a cluster."""
    path = _path(identity)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # A single write, which is atomic.
    with path.open("a") as file:
        file.write("".join(f"{each}\n" for each in ids))


def instances(identity: str) -> list[str]:
    """Return the ids of instances that a cluster has had."""
    return [each for each in _ids(identity) if each.startswith("i-")]


def groups(identity: str) -> list[str]:
    """Return the ids of security groups that a cluster has had."""
    return [each for each in _ids(identity) if each.startswith("sg-")]


def forget(identity: str, ids: Iterable[str] | None = None) -> None:
    """Forget ids that are gone, or all of a cluster."""
    gone = set(_ids(identity) if ids is None else ids)
    left = [each for each in _ids(identity) if each not in gone]
    path = _path(identity)
    if not left:
        path.unlink(missing_ok=True)
        return
    new = path.with_suffix(".new")
    new.write_text("".join(f"{each}\n" for each in left))
    new.replace(path)


def _ids(identity: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return list(dict.fromkeys(_path(identity).read_text().split()))
    return []


def _path(identity: str) -> Path:
    return folder() / "rented" / identity
