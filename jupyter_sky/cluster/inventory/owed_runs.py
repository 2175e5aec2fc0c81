"""Records on this computer's disk what the runs of a cluster still owe the kernel that began them.

A run owes its beginning while it waits for its turn, the values that it was asked for until they
are here, and what its kernel is to begin after it. If the kernel ends before, the next one says so.

Unpickling a value runs code that its node has chosen. A kernel that takes over a run from another
one therefore unpickles only the names recorded here, whatever a node says that it was asked for.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.formatting import format_list
from jupyter_sky.paths import home, replace_text

Asked = Mapping[int, Sequence[str]]
"""The names that each rank is asked for."""


@dataclass(frozen=True)
class OwedRun:
    """What a run owes.

    Attributes
    ----------
    title
        What the user calls the run.
    asked
        The names that each rank is asked for.
    gathered
        Those of them of which every rank's value is wanted.
    then
        What the user calls the run that follows it, if any does.
    waits
        Whether it waits for its turn.
    """

    title: str
    asked: Asked
    gathered: Sequence[str] = ()
    then: str = ""
    waits: bool = False

    @property
    def sentence(self) -> str:
        """What to say of it where nobody is left who would begin it or take its values."""
        if self.waits:
            return (
                f"`{self.title}` did not run: the kernel that was to begin it ended before its "
                "turn came; run it again"
            )
        head = min(self.asked)
        single = [name for name in self.asked[head] if name not in self.gathered]
        pulls = []
        if single:
            pulls.append(f"`%sky pull {' '.join(single)}`")
        if self.gathered:
            pulls.append(f"`%sky pull {' '.join(self.gathered)} --ranks all`")
        bring = "brings" if len(pulls) == 1 else "bring"
        them = "it" if len(self.asked[head]) == 1 else "them"
        return (
            f"the kernel that began `{self.title}` ended before {format_list(self.asked[head])} "
            f"came: {' and '.join(pulls)} {bring} {them}, as ranks have {them} now"
        )


def record(cluster: str, run: str, owed: OwedRun) -> None:
    """Record what a run owes that waits for its turn, or is about to begin.

    Earlier runs whose values have come are forgotten, and those of which the same names were asked:
    runs take turns, and nodes offer the values of the last one only.
    """
    path = _path(cluster, run)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    asked = {rank: list(names) for rank, names in owed.asked.items()}
    lists = {"asked": asked, "gathered": list(owed.gathered)}
    _write(path, {**vars(owed), **lists, "by": _by(), "came": False})
    if owed.waits:
        return
    new = {name for names in asked.values() for name in names}
    for other, found in _records(cluster):
        former = {name for names in found["asked"].values() for name in names}
        is_over = found["came"] or former <= new
        if other != path and not found["waits"] and is_over:
            other.unlink(missing_ok=True)


def settle(cluster: str, run: str) -> None:
    """Record that a run owes nothing more: its values have come, or nobody will get them.

    What it was asked for is still known, until another run begins: a kernel that is killed now is
    followed by one that is shown the end of the run once more.
    """
    path = _path(cluster, run)
    with contextlib.suppress(OSError, ValueError):
        found = _read(path)
        if found["waits"]:
            path.unlink(missing_ok=True)
        else:
            _write(path, {**found, "came": True})


def owes(cluster: str, run: str) -> bool:
    """Return whether values of a run have not come that a kernel of here has asked for."""
    with contextlib.suppress(OSError, ValueError):
        found = _read(_path(cluster, run))
        return bool(found["asked"]) and not found["came"]
    return False


def find(cluster: str, run: str) -> OwedRun:
    """Return what a run owes; nothing is asked of it where no kernel of here has begun it."""
    with contextlib.suppress(OSError, ValueError):
        return _owed(_read(_path(cluster, run)))
    return OwedRun("", {})


def count_waiting(cluster: str) -> int:
    """Return how many runs wait for their turn, of kernels that are there, or may be."""
    with contextlib.suppress(ValueError):
        waiting = [found["by"] for _, found in _records(cluster) if found["waits"]]
        return sum(_may_be_there(by, shared=True) for by in waiting)
    return 0


def take_left(cluster: str, shared: bool, but: str | None) -> list[OwedRun]:
    """Return, once, what runs owe whose kernels have ended.

    Parameters
    ----------
    cluster
        The cluster's id.
    shared
        Whether another notebook is connected to it, which may be on another computer.
    but
        A run that is followed instead.
    """
    left = []
    for path, found in _records(cluster):
        then, by = found["then"], found["by"]
        if found["came"] or _may_be_there(by, shared) or (path.stem == but and not then):
            continue
        if found["waits"] or not then:
            left.append((by["at"], _owed(found)))
        if then:
            left.append((by["at"], OwedRun(then, {}, waits=True)))
        with contextlib.suppress(OSError):
            path.unlink()
    return [owed for _, owed in sorted(left, key=lambda each: each[0])]


def forget(cluster: str) -> None:
    """Forget the runs of a cluster of which nothing is left."""
    with contextlib.suppress(ValueError):
        shutil.rmtree(_folder(cluster), ignore_errors=True)


def _by() -> dict[str, Any]:
    return {**processes.describe(), "at": time.time()}


def _may_be_there(by: Mapping[str, Any], shared: bool) -> bool:
    """Return whether the kernel that has recorded something may still be there."""
    is_here = by["computer"] == processes.describe()["computer"]
    return processes.is_there(by, by["at"]) or (shared and not is_here)


def _records(cluster: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the records of a cluster that can be read, with their files."""
    for path in _folder(cluster).glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            yield path, _read(path)


def _owed(found: Mapping[str, Any]) -> OwedRun:
    return OwedRun(**{each.name: found[each.name] for each in fields(OwedRun)})


def _read(path: Path) -> dict[str, Any]:
    """Return a record, whose parts a kernel of another version may have written differently.

    Raises
    ------
    ValueError
        If it is none of this version.
    """
    found: Any = json.loads(path.read_bytes())
    parts = [found.get("asked"), found.get("by")] if isinstance(found, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{path} is no record of a run")
    asked = {int(rank): list(map(str, names)) for rank, names in found["asked"].items()}
    gathered = list(map(str, found.get("gathered", ())))
    absent = {"title": "", "then": "", "waits": False, "came": False}
    return {**absent, **found, "asked": asked, "gathered": gathered}


def _write(path: Path, found: Mapping[str, Any]) -> None:
    """Write a record in place of the one before, which others may read at any moment."""
    replace_text(path, json.dumps(found))


def _folder(cluster: str) -> Path:
    return home() / "asked" / _file_name(cluster)


def _path(cluster: str, run: str) -> Path:
    return _folder(cluster) / f"{_file_name(run)}.json"


def _file_name(identity: str) -> str:
    """Return an id as a file name: that of a run may come from a node."""
    if not identity.isalnum():
        raise ValueError(f"{identity!r} is no id")
    return identity
