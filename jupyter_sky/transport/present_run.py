"""The run that this process takes part in as a rank: who else does, and who has finished it.

Without this, a collective would wait for ever for a rank that has already finished the cell.

Plugins can also have something done before a run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from jupyter_sky.transport.protocol.events import Saved
from jupyter_sky.transport.protocol.messages import RunFields
from jupyter_sky.transport.rank_ranges import ranks_of

Tell = Callable[[Saved], object]


@dataclass
class _Run:
    """A run, as one of its ranks knows it.

    Attributes
    ----------
    id, rank
        Its id, and this rank.
    ranks
        Those that carry out the same code.
    checkpoint
        The last one that an earlier attempt has saved.
    forks
        Whether its calls are carried out in processes forked from this one.
    tell
        Reports a new checkpoint to the notebook.
    """

    id: str
    rank: int
    ranks: tuple[int, ...]
    checkpoint: str | None
    forks: bool
    tell: Tell


_present: _Run | None = None
_ended: _Run | None = None  # until the others know that it is over here
_after_cut_off: list[Callable[[], object]] = []


def begin(run: RunFields, rank: int, tell: Tell) -> None:
    """Remember the run that begins.

    Parameters
    ----------
    run
        The run.
    rank
        This rank.
    tell
        Reports a new checkpoint to the notebook.
    """
    global _present
    serves = run["serves"]
    # Calls that ranks take one by one are none that they do together.
    together = [rank] if serves else ranks_of(run["everyone"])
    forks = serves is not None and serves["executor"] == "process"
    _present = _Run(run["run"], rank, tuple(together), run["checkpoint"], forks, tell)


@contextmanager
def calling_after_cut_off(function: Callable[[], object]) -> Iterator[None]:
    """Have a function called on all ranks together, before the first run after one was cut off."""
    _after_cut_off.append(function)
    try:
        yield
    finally:
        _after_cut_off.remove(function)


def resume_after_cut_off() -> None:
    """Call what has to be called before the first run after one was cut off."""
    for function in [*_after_cut_off]:
        function()


def end(well: bool) -> None:
    """Note that the run is over here, and whether it ended without an error."""
    global _present, _ended
    _present, _ended = None, _present if well else None


def tell_end(rank: int) -> None:
    """Tell the other ranks of the process group, if there is one, that this rank is done.

    Called when the rank is idle for a moment. Nothing else begins here while others are still in
    the run, and telling it at once, which nobody may ask for, would take a good part of a short
    cell's time.
    """
    global _ended
    told, _ended = _ended, None
    if told and len(told.ranks) > 1 and (store := group_store()):
        with suppress(Exception):  # the group is broken, and the others know that
            store.set(_key(rank), told.id)


def ranks() -> tuple[int, ...]:
    """Return the ranks that carry out the same code in the present run; none outside a run."""
    return _present.ranks if _present else ()


def identity() -> str:
    """Return the id of the present run; empty outside a run."""
    return _present.id if _present else ""


def checkpoint() -> str | None:
    """Return the last checkpoint that an earlier attempt at the present run has saved."""
    return _present.checkpoint if _present else None


def forks() -> bool:
    """Return whether calls of the present run are carried out in processes forked from this one."""
    return _present is not None and _present.forks


def report_saved(path: str, step: float | None, uploaded: bool) -> None:
    """Report a complete checkpoint to the notebook, if this process is a rank in a run."""
    if run := _present:
        with suppress(OSError):  # the agent is gone
            run.tell(Saved(run.rank, run.id, path, step, uploaded))


def have_ended(others: Sequence[int]) -> list[int]:
    """Return those of ``ranks`` that have finished the present run."""
    store = group_store()
    if _present is None or store is None:
        return []
    return [
        rank
        for rank in others
        if store.check([_key(rank)]) and store.get(_key(rank)).decode() == _present.id
    ]


def group_store() -> Any:
    """Return the store of the process group; ``None`` where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()


def _key(rank: int) -> str:
    return f"end of a run on rank {rank}"
