"""What a run is to do, and the messages about it, as plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jupyter_sky.cluster.errors import Failure
from jupyter_sky.cluster.metrics.curves import Curves
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.errors import SkyError
from jupyter_sky.serialization.cell_sources import Cells
from jupyter_sky.transport.protocol.debugging import Debugging
from jupyter_sky.transport.protocol.events import Display, Output
from jupyter_sky.transport.protocol.messages import NameGroup, Packed, Script, Serving
from jupyter_sky.transport.protocol.profiling import RecordKind

HANG_AFTER = 10.0
"""Seconds that a rank waits for others before the user is told."""


def no_debugging() -> Debugging:
    """Return the debugging options of a run that asks the user nothing."""
    return {"keyboard": False, "stops": False, "looks_at": None}


@dataclass(frozen=True)
class CellPlace:
    """Where a cell's code stands in the notebook, for tracebacks.

    Attributes
    ----------
    title
        What its cell is called in the notebook, like ``In[3]``.
    above
        Number of lines of the cell above the code, such as that of the magic.
    cell
        The cell's id in the notebook's file, if a page has sent it.
    """

    title: str = ""
    above: int = 0
    cell: str | None = None


@dataclass(frozen=True)
class Attempt:
    """Which of several attempts at a task this is; the earlier ones have lost a rank or a node.

    Attributes
    ----------
    number, limit
        Its number, counted from 1, and the most attempts.
    checkpoint, step
        The last checkpoint that earlier attempts have saved, and its step.
    timeout
        Seconds that all attempts may take together; ``None`` for no limit.
    metrics
        What the previous attempt has logged.
    """

    number: int = 1
    limit: int = 1
    checkpoint: str | None = None
    step: float | None = None
    timeout: float | None = None
    metrics: Curves | None = None


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
    program
        The name and arguments of the program that it is part of; ``None`` in a notebook.
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
    show: tuple[int, ...] = (0,)
    title: str = ""
    serves: Serving | None = None
    talks: bool = False
    records: tuple[RecordKind, ...] = ()
    hang_after: float = HANG_AFTER
    debugging: Debugging = field(default_factory=no_debugging)
    attempt: Attempt = Attempt()
    program: tuple[str, ...] | None = None

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
    """A message to a rank: a pickled value, and the names that the value needs."""

    packed: Packed
    blobs: Mapping[str, memoryview]
    cells: Cells
    names: Sequence[NameGroup] = ()


@dataclass(frozen=True)
class PackedCall:
    """A call, ready to be sent.

    Attributes
    ----------
    packed, blobs, cells
        The call, its large parts, and the notebook's cells that its functions come from.
    timeout
        Seconds that it may take; ``None`` for no limit.
    retries
        How often it is tried again when its rank is lost.
    is_fed
        Whether some of its arguments are iterators that stay in the notebook.
    """

    packed: Packed
    blobs: Mapping[str, memoryview]
    cells: Cells
    timeout: float | None = None
    retries: int = 0
    is_fed: bool = False

    def message(self, names: Sequence[NameGroup], blobs: Mapping[str, memoryview]) -> Message:
        """Return the message that brings it to a rank, with names that the rank lacks."""
        return Message(self.packed, {**self.blobs, **blobs}, self.cells, names)


@dataclass(frozen=True)
class Asked:
    """A rank's request for items of an iterator that its call was given and the notebook has.

    Attributes
    ----------
    number
        The position of the call in the batch.
    attempt
        Identifies this attempt at the call; ranks that were lost may have made others.
    rank
        The rank that asks.
    feed, count
        Which of the call's iterators, and how many more items.
    tell
        Answers the rank, in the background loop: the kind of the message, the iterator, an item,
        and the names that the item needs.
    """

    number: int
    attempt: int
    rank: int
    feed: int
    count: int
    tell: Callable[[str, int, Message | None, NamespaceUpdate | None], None]


@dataclass(frozen=True)
class Answer:
    """The result of a call.

    Attributes
    ----------
    number
        The position of the call in the batch.
    rank
        The rank that carried it out; ``None`` if none did.
    values
        What it returned, packed.
    failure, trouble
        Its error; why it could not be carried out.
    """

    number: int
    rank: int | None
    values: Packed | None = None
    failure: Failure | None = None
    trouble: SkyError | None = None


@dataclass(eq=False)
class Batch:
    """Calls that are submitted together.

    Attributes
    ----------
    calls
        The calls.
    update
        The names that ranks need for them.
    serving
        How each rank carries them out.
    ahead
        How many calls are sent to a rank in advance, while it is busy with others.
    title
        What the user calls it.
    sink
        Called with each answer, and with what ranks ask for, print and display meanwhile.
    program
        The name and arguments of the program that makes them; ``None`` in a notebook.
    tries
        How often each call has lost its rank, by the call's position.
    cancelled
        The positions of calls that are not wanted any more.
    spent
        The positions of calls that cannot be tried again, because items of their iterators are
        used up.
    """

    calls: Sequence[PackedCall]
    update: NamespaceUpdate
    serving: Serving
    ahead: int
    title: str
    sink: Callable[[Answer | Asked | Output | Display], object]
    program: tuple[str, ...] | None
    tries: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    cancelled: set[int] = field(default_factory=set)
    spent: set[int] = field(default_factory=set)

    def task(self, ranks: tuple[int, ...]) -> Task:
        """Return the task of a run in which ranks carry out these calls, and others that join."""
        return Task(
            ranks,
            update=self.update,
            show=ranks,
            title=self.title,
            serves=self.serving,
            program=self.program,
        )


BatchedCall = tuple[Batch, int]
"""A call: its batch, and its position there."""
