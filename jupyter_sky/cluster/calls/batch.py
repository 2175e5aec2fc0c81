"""Calls that are submitted together, what ranks ask for meanwhile, and their answers, as data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jupyter_sky.cluster.errors import Failure
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.runs.task import Message, RunNotice, Task
from jupyter_sky.errors import SkyError
from jupyter_sky.serialization.cell_sources import Cells
from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.protocol.events import Display, Output
from jupyter_sky.transport.protocol.messages import NameGroup, Serving


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

    def message(
        self, number: int, names: Sequence[NameGroup], blobs: Mapping[str, memoryview]
    ) -> Message:
        """Return the message that brings it to a rank, with names that the rank lacks."""
        every = {**self.blobs, **blobs}
        return Message("call", number, 0, self.packed, every, self.cells, names, self.timeout)


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
        Answers the rank, in the background loop, with a message and the names that it needs.
    """

    number: int
    attempt: int
    rank: int
    feed: int
    count: int
    tell: Callable[[Message, NamespaceUpdate | None], None]


@dataclass(frozen=True)
class CallResult:
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
    began
        When a rank was given the first of them, by the monotonic clock.
    tries
        How often each call has lost its rank, by the call's position.
    lost
        The same while its arguments were on their way, which is no attempt.
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
    sink: Callable[[CallResult | Asked | Output | Display | RunNotice], object]
    program: tuple[str, ...] | None
    began: float | None = None
    tries: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    lost: dict[int, int] = field(default_factory=lambda: defaultdict(int))
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


@dataclass(frozen=True)
class BatchedCall:
    """A call: its batch, and its position there."""

    batch: Batch
    position: int

    @property
    def packed(self) -> PackedCall:
        """The call itself."""
        return self.batch.calls[self.position]

    @property
    def is_cancelled(self) -> bool:
        """Whether it is not wanted any more."""
        return self.position in self.batch.cancelled

    def may_be_tried_again(self) -> bool:
        """Count an attempt whose rank was lost; return whether another one may be made."""
        batch, position = self.batch, self.position
        batch.tries[position] += 1
        return batch.tries[position] <= self.packed.retries and position not in batch.spent

    def answer(
        self,
        rank: int | None,
        values: Packed | None = None,
        *,
        failure: Failure | None = None,
        trouble: SkyError | None = None,
    ) -> None:
        """Tell the batch its result, or why there is none; see `CallResult`."""
        self.batch.sink(CallResult(self.position, rank, values, failure, trouble))
