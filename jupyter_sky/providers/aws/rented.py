"""What each cluster has rented, on the user's disk: ids that can be ended without asking for them.

Looking for tags needs permissions that may be missing, and answers that may not come. What is
written down here as soon as AWS says it is ended first, whatever becomes of looking.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from jupyter_sky.providers.aws.local_store import folder


def note(identity: str, ids: Iterable[str]) -> None:
    """Write down ids of instances and security groups of a cluster; it keeps those it has."""
    path = _path(identity)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # One write, which is there as a whole or not at all.
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
