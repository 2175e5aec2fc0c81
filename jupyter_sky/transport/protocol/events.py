"""Every event that an agent sends, as a small frozen dataclass.

On the wire an event is a message whose ``"event"`` is the name of its class in snake case; fields
that this version does not know are ignored, so that a newer agent can say more.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_type_hints

from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.protocol.error_report import ErrorReport
from jupyter_sky.transport.protocol.messages import Packed
from jupyter_sky.transport.protocol.shape import Check, check_for
from jupyter_sky.transport.rank_ranges import RankRanges

Outcome = Literal["ok", "error", "interrupted"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened on a node."""

    kinds: ClassVar[dict[str, type[Event]]] = {}

    def message(self) -> Message:
        """Return the event as it goes over the wire."""
        kind = _kind(type(self).__name__)
        return {"event": kind, **{name: getattr(self, name) for name in _fields(kind)}}


@functools.cache
def _kind(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@functools.cache
def _fields(kind: str) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(Event.kinds[kind]))


@functools.cache
def _plan(kind: str) -> tuple[tuple[str, Check, Any, Callable[[], Any] | None], ...]:
    """Return of each field of an event its check, what sets it, and what gives its default."""
    hints = get_type_hints(cls := Event.kinds[kind])
    # A frozen dataclass sets its fields in a way that takes five times as long as this.
    return tuple(
        (each.name, check_for(hints[each.name]), getattr(cls, each.name).__set__, _default(each))
        for each in dataclasses.fields(cls)
    )


def _default(of: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if of.default_factory is not dataclasses.MISSING:
        return of.default_factory
    return None if of.default is dataclasses.MISSING else lambda: of.default


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """The fork server of a node has imported what it should.

    Attributes
    ----------
    versions
        Versions of Python and the packages that ranks use (`transport.protocol.versions`).
    missing
        Modules that could not be imported, and why.
    """

    versions: dict[str, str]
    missing: dict[str, str]


@dataclass(frozen=True, slots=True)
class RankStarted(Event):
    """A rank has started: a fresh process with an empty namespace."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankExited(Event):
    """A rank's process ended; what was in its namespace is lost.

    Attributes
    ----------
    reason
        How it ended, in words.
    run
        The run that it was busy with, if any.
    tail
        The last lines of its log.
    again
        Whether a fresh process takes its place.
    """

    rank: int
    pid: int
    reason: str
    run: str | None
    tail: str
    again: bool = True


@dataclass(frozen=True, slots=True)
class Formed(Event):
    """A rank entered the process group of a generation, or could not, because of ``error``."""

    rank: int
    generation: int
    error: ErrorReport | None


@dataclass(frozen=True, slots=True)
class Output(Event):
    """Bytes that a rank wrote to a stream: ``"stdout"`` or ``"stderr"``.

    Attributes
    ----------
    skipped_lines, skipped_bytes
        How much was left out before them because there was too much to show; the log has it.
    call
        Which of several calls at once has written them, where that is known.
    """

    rank: int
    run: str | None
    stream: str
    data: bytes
    skipped_lines: int = 0
    skipped_bytes: int = 0
    call: int = 0


@dataclass(frozen=True, slots=True)
class Display(Event):
    """Something that a rank displayed, as IPython's messages describe it.

    Attributes
    ----------
    kind
        ``"display"``, ``"update"``, ``"result"`` or ``"clear"``.
    data, metadata, transient
        As in Jupyter's ``display_data``; of ``"clear"``, ``data`` has ``wait``.
    skipped
        How many displays were left out before it because there were too many to show.
    call
        Which of several calls at once has displayed it, where that is known.
    """

    rank: int
    run: str | None
    kind: str
    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    transient: dict[str, Any] = field(default_factory=dict)
    skipped: int = 0
    call: int = 0


@dataclass(frozen=True, slots=True)
class Metrics(Event):
    """Figures that a rank has logged in a run since its last such event.

    Attributes
    ----------
    points
        By name, step and value of each point in turn, as doubles, which
        `jupyter_sky.transport.metrics.series` packs.
    counts
        How many figures these stand for.
    of
        The rank of the process that has logged them, where it is one of a script beside this rank
        that torchrun has given a number of its own.
    """

    rank: int
    run: str
    points: dict[str, bytes]
    counts: dict[str, int]
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Saved(Event):
    """A checkpoint that ranks have saved together holds: the run can go on from it.

    Attributes
    ----------
    path
        Where it is, as the user wrote it.
    step
        What was saved as ``step``, if that is a number.
    """

    rank: int
    run: str
    path: str
    step: float | None


@dataclass(frozen=True, slots=True)
class RunBegan(Event):
    """A run has begun on this node; a kernel that attaches later can follow it from here.

    Attributes
    ----------
    ranks
        All ranks that take part, also those of other nodes.
    title, show
        What a user calls it; the ranks whose output is shown.
    asked, seconds
        The names asked for afterwards, for each rank; how long ago, for who attaches later.
    """

    run: str
    ranks: RankRanges
    title: str
    show: RankRanges
    asked: dict[int, list[str]]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RankDone(Event):
    """A rank has finished its part of a run.

    Attributes
    ----------
    outcome
        How it ended.
    error
        The exception that ended it; also that of an interrupt.
    values
        What was asked for, pickled; the agent never unpickles it.
    broken
        Whether the process group was broken to end the run, and has to be formed again.
    bound
        ``True`` for names that stand for another object than before, ``False`` for those names that
        the rank was told to watch and that stand for the same object.
    arrived
        The shipments of names that the rank did bind for the run; ``None`` if it cannot say.
    seconds
        How long it took, as its node has measured; ``None`` if that is not known.
    tail
        The end of what the rank printed in the run, if that was not shown; the agent adds it.
    """

    rank: int
    run: str
    outcome: Outcome
    error: ErrorReport | None = None
    values: Packed | None = None
    broken: bool = False
    bound: dict[str, bool] = field(default_factory=dict)
    arrived: list[str] | None = None
    seconds: float | None = None
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class Told(Event):
    """A rank tells the notebook something in the middle of a run.

    Attributes
    ----------
    kind
        ``"value"``: what a call returned, or what a generator yielded; ``"error"``: how a call
        failed; ``"lost"``: the process of a call ended; ``"ask"``: so many more items are wanted.
    number
        Which call it is about, of several.
    values
        The value, pickled; the agent never unpickles it.
    error
        The exception.
    feed, count
        Which of the call's iterators it is about, and how many of its items are wanted.
    """

    rank: int
    run: str
    kind: str
    number: int
    values: Packed | None = None
    error: ErrorReport | None = None
    feed: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Prompted(Event):
    """A rank waits for an answer of the user.

    Attributes
    ----------
    kind
        ``"debugger"``, ``"input"`` or ``"password"``; ``"over"``: the rank goes on without one.
    number
        Which prompt of the rank it is.
    prompt
        What stands before the answer; of the debugger nothing.
    text
        What the debugger has to say.
    place
        Where the rank stands, like ``"cell [7], line 12"``.
    """

    rank: int
    run: str
    kind: str
    number: int
    prompt: str = ""
    text: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Leaving(Event):
    """The node is about to be taken away.

    Attributes
    ----------
    kind
        What will be done with it, as in `jupyter_sky.transport.preemption.Interruption`.
    at
        When, as ``time.time`` tells it; ``None`` if that is not known.
    ranks
        The ranks on it.
    """

    kind: str
    at: float | None
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class Ending(Event):
    """The agent ends: ``reason`` says why it does by itself, and is empty where a user wants it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Forgotten(Event):
    """The agent dropped blobs to stay within its limits; they have to be sent again."""

    digests: list[str]


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """Events that stood here were not kept: the disk was full, or there were too many.

    Attributes
    ----------
    shown
        How many of them were what ranks printed or displayed.
    others
        How many were not.
    """

    shown: int
    others: int


Event.kinds.update({_kind(cls.__name__): cls for cls in Event.__subclasses__()})


def decode_event(message: Message) -> Event:
    """Return the event in ``message``.

    Raises
    ------
    ProtocolError
        When it is unknown, or does not have the shape of one.
    """
    kind = message.get("event", "")
    event = Event.kinds.get(kind) if isinstance(kind, str) else None
    if event is None:
        raise ProtocolError(f"unknown event {kind!r}")
    made = object.__new__(event)
    for name, fits, put, default in _plan(kind):
        if name in message:
            value = message[name]
            if not fits(value):
                raise ProtocolError(f"the {name} of {kind} is malformed")
            put(made, value)
        elif default:
            put(made, default())
        else:
            raise ProtocolError(f"{kind} lacks a field")
    return made
