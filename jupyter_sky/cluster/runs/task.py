"""What a run is to do, and the messages about it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jupyter_sky.cluster.metrics.curves import Curves
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs.shared_turn import SharedTurn
from jupyter_sky.serialization.cell_sources import Cells
from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.protocol.calls import TellFields
from jupyter_sky.transport.protocol.debugging import Debugging
from jupyter_sky.transport.protocol.messages import NameGroup, Script, Serving
from jupyter_sky.transport.protocol.profiling import RecordKind

HANG_AFTER = 10.0
"""Seconds that a rank waits for others before the user is told."""


def no_debugging() -> Debugging:
    """Return the debugging options of a run that asks the user nothing."""
    return {"keyboard": False, "stops": False, "looks_at": None}


@dataclass(frozen=True)
class CellPlace:
    """Where a cell's code stands in the notebook or script, for tracebacks.

    Attributes
    ----------
    title
        What its cell is called in the notebook, like ``In[3]``; of a script, the file's name.
    above
        Number of lines above the code, such as that of the magic: of the cell, or of the script.
    cell
        The cell's id in the notebook's file, if a page has sent it.
    """

    title: str = ""
    above: int = 0
    cell: str | None = None


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that ranks have saved together.

    Attributes
    ----------
    path, step
        Its path, as the user wrote it; the value saved as ``step``, if that is a number.
    when
        When it was complete, by the monotonic clock.
    only_on
        The nodes that alone have it, while its bucket does not; empty if it does.
    """

    path: str
    step: float | None
    when: float
    only_on: tuple[Connection, ...] = ()

    @property
    def is_there(self) -> bool:
        """Whether no node was lost without which it is not whole."""
        return not any(each.is_over for each in self.only_on)


@dataclass(frozen=True)
class Attempt:
    """Which of several attempts at a task this is; the earlier ones have lost a rank or a node.

    Attributes
    ----------
    number, limit
        Its number, counted from 1, and the most attempts.
    checkpoints
        Those that earlier attempts have saved, the last one first: it, and the last in its bucket.
    timeout
        Seconds that all attempts may take together; ``None`` for no limit.
    metrics
        What the previous attempt has logged.
    earlier
        The ids of the runs that were the earlier attempts.
    """

    number: int = 1
    limit: int = 1
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    timeout: float | None = None
    metrics: Curves | None = None
    earlier: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        """How many further attempts may follow."""
        return self.limit - self.number

    @property
    def checkpoint(self) -> SavedCheckpoint | None:
        """The last checkpoint from which it can go on now."""
        return next((each for each in self.checkpoints if each.is_there), None)


@dataclass(frozen=True)
class Task:
    """What ranks should do: a cell's ``code``, a packed ``call``, a ``script``, or calls to come.

    Attributes
    ----------
    ranks
        The ranks that take part.
    cells
        The notebook's cells that functions in ``call`` come from.
    place
        Where ``code`` stands in the notebook.
    update
        The names that the ranks need.
    blobs
        Large parts of ``call``, or the files of ``script``.
    values
        The names that are asked for afterwards, for each rank.
    gathered
        Those of them of which the value of every rank is wanted, even where there is one.
    show
        The ranks whose output is sent here while they run.
    title
        What the user calls it.
    serves
        How ranks carry out calls that are sent one by one, if that is the task.
    talks
        Whether ``call`` sends values while it runs, or asks for items.
    records
        What ranks record, for `jupyter_sky.cluster.profiling`.
    hang_after
        Seconds that a rank waits for others before the user is told where all of them are.
    debugging
        Whether somebody answers prompts, and what the debugger is to do.
    attempt
        Which attempt at it this is.
    turn
        The turn that further attempts at it keep; without it, it has its own.
    program
        The name and arguments of the program that it is part of; ``None`` in a notebook.
    then
        What the user calls the run that this kernel begins after it, if it begins one.
    """

    ranks: tuple[int, ...]
    code: str | None = None
    call: Packed | None = None
    script: Script | None = None
    cells: Cells = field(default_factory=dict)
    place: CellPlace = field(default_factory=CellPlace)
    update: NamespaceUpdate = field(default_factory=NamespaceUpdate)
    blobs: dict[str, memoryview] = field(default_factory=dict)
    values: Mapping[int, Sequence[str]] = field(default_factory=dict)
    gathered: Sequence[str] = ()
    show: tuple[int, ...] = (0,)
    title: str = ""
    serves: Serving | None = None
    talks: bool = False
    records: tuple[RecordKind, ...] = ()
    hang_after: float = HANG_AFTER
    debugging: Debugging = field(default_factory=no_debugging)
    attempt: Attempt = Attempt()
    turn: SharedTurn | None = None
    program: tuple[str, ...] | None = None
    then: str = ""

    def asks(self, rank: int) -> bool:
        """Return whether a rank is asked for a value; values of other ranks are not unpickled."""
        return rank in self.ranks and (self.call is not None or bool(self.values.get(rank)))


@dataclass(frozen=True)
class RunNotice:
    """Something that the user should know while the run goes on."""

    text: str


@dataclass(frozen=True)
class HangNotice:
    """Where the ranks are, when some wait long for others; or that this wait ``is_over``."""

    text: str
    is_over: bool = False


@dataclass(frozen=True)
class Message:
    """A message to ranks in the middle of a run, as in `TellFields`, with its large parts."""

    kind: str
    number: int = 0
    feed: int = 0
    packed: Packed | None = None
    blobs: Mapping[str, memoryview] = field(default_factory=dict)
    cells: Cells = field(default_factory=dict)
    names: Sequence[NameGroup] = ()
    timeout: float | None = None

    def fields(self, run: str, rank: int) -> TellFields:
        """Return what is sent to one of the ranks."""
        return {
            "run": run,
            "rank": rank,
            "kind": self.kind,
            "number": self.number,
            "feed": self.feed,
            "packed": self.packed,
            "names": [group for group in self.names if rank in group["ranks"]],
            "cells": self.cells,
            "timeout": self.timeout,
        }
