"""The events that an agent sends, each a small frozen dataclass.

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

from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.protocol.error_report import ErrorReport
from jupyter_sky.transport.protocol.shape import Check, check_for
from jupyter_sky.transport.rank_ranges import RankRanges

Outcome = Literal["ok", "error", "interrupted"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened on a node."""

    kinds: ClassVar[dict[str, type[Event]]] = {}

    def message(self) -> Message:
        """Return the event as a message."""
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
    """Return for each field of an event its check, its setter, and its default factory."""
    hints = get_type_hints(cls := Event.kinds[kind])
    # Five times as fast as a frozen dataclass's own `__init__`.
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
    """The fork server of a node has imported its modules.

    Attributes
    ----------
    versions, missing
        Versions of Python and the packages that ranks use (`transport.protocol.versions`); modules
        that could not be imported, and why.
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
    """A rank's process ended; its namespace is lost.

    Attributes
    ----------
    reason, tail
        How it ended, in words; the last lines of its log.
    run
        The run that it was executing, if any.
    again, ignored_stop
        Whether a new process replaces it; whether it was ended as it did not react to Stop.
    """

    rank: int
    pid: int
    reason: str
    run: str | None
    tail: str
    again: bool = True
    ignored_stop: bool = False


@dataclass(frozen=True, slots=True)
class Formed(Event):
    """A rank entered the process group of a generation, or failed to, with ``error``."""

    rank: int
    generation: int
    error: ErrorReport | None
    members: str = ""  # as in its `Topology`


@dataclass(frozen=True, slots=True)
class Output(Event):
    """Bytes that a rank wrote to a stream: ``"stdout"`` or ``"stderr"``.

    Attributes
    ----------
    skipped_lines, skipped_bytes
        How much output before it was not shown because there was too much; the log has it.
    call
        Which of several concurrent calls wrote it, if that is known.
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
        As in Jupyter's ``display_data``; for ``"clear"``, ``data`` has ``wait``.
    skipped
        How many displays before it were left out because there were too many to show.
    call
        Which of several concurrent calls displayed it, if that is known.
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
    """Metrics that a rank has logged in a run since its last such event.

    Attributes
    ----------
    points, counts
        The points of each name, as packed by `jupyter_sky.transport.metrics.series`, and how many
        logged values they stand for.
    of
        The rank that torchrun gave to the process that logged them, if they come from a script
        beside this rank.
    """

    rank: int
    run: str
    points: dict[str, bytes]
    counts: dict[str, int]
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Saved(Event):
    """A checkpoint that ranks saved together is complete: a further attempt can resume there.

    Attributes
    ----------
    path, step, uploaded
        Its path, as the user wrote it; the number saved as ``step``; if its bucket has it, too.
    """

    rank: int
    run: str
    path: str
    step: float | None
    uploaded: bool = True


@dataclass(frozen=True, slots=True)
class RunBegan(Event):
    """A run has begun on this node; a kernel that attaches later follows it from here.

    Attributes
    ----------
    ranks, show
        All ranks that take part, including those of other nodes; those whose output is shown.
    title, asked
        Its title for the user; the names requested for afterwards, by rank.
    seconds, attempts_left
        For a kernel that attaches later: how long ago it began; see `RunRequest`.
    """

    run: str
    ranks: RankRanges
    title: str
    show: RankRanges
    asked: dict[int, list[str]]
    seconds: float = 0.0
    attempts_left: int = 0


@dataclass(frozen=True, slots=True)
class RankDone(Event):
    """A rank has finished its part of a run.

    Attributes
    ----------
    outcome, stopped
        How it ended, and whether it was told to stop, which its code may have caught.
    error
        The exception that ended it, including that of an interrupt.
    values
        The requested values, pickled; the agent never unpickles them.
    broken
        Whether the process group was broken to end the run, so that it must be formed again.
    bound
        ``True`` for names that are bound to another object, ``False`` for other watched names.
    arrived
        The shipments of names that the rank bound for the run; ``None`` if it cannot tell.
    seconds, tail
        How long it took, if known, and the end of what it wrote, if not shown: the agent adds them.
    begun
        By group in which it began collectives: the number of the last one, and the group's size.
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
    stopped: bool = False
    begun: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told(Event):
    """A message from a rank to the notebook in the middle of a run.

    Attributes
    ----------
    kind, reason
        ``"value"``: a call returned or a generator yielded; ``"error"``: a call failed; ``"lost"``:
        its process ended, for a ``reason`` if one is known; ``"ask"``: more items are wanted. For
        the agent alone: ``"waits"`` until the notebook says more; ``"goes_on"`` without that.
    number, feed, count
        Which of several calls and of its iterators, and how many items; of a call that waits, the
        messages that it had.
    values, error
        The value, pickled, which the agent never unpickles; the exception.
    """

    rank: int
    run: str
    kind: str
    number: int
    values: Packed | None = None
    error: ErrorReport | None = None
    reason: str = ""
    feed: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Prompted(Event):
    """A rank waits for the user's answer to a prompt.

    Attributes
    ----------
    kind
        ``"debugger"``, ``"input"`` or ``"password"``; ``"over"``: the rank continues without an
        answer.
    number, prompt
        Which prompt of the rank it is; the prompt itself, empty for the debugger.
    text
        The debugger's output; why the rank continues if nobody has answered it.
    place
        Where the rank has stopped, like ``"cell [7], line 12"``.
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
        What will happen to it, as in `jupyter_sky.transport.preemption.Interruption`.
    at, ranks
        When, as ``time.time`` counts, if that is known; the ranks on it.
    """

    kind: str
    at: float | None
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class Ending(Event):
    """The agent ends, with the ``whole`` cluster or without; no ``reason``: a user ends it."""

    reason: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Added(Event):
    """The notebook ``by`` has attached, or has added something: the registry tells what."""

    by: str


@dataclass(frozen=True, slots=True)
class Queued(Event):
    """The ``runs`` that wait for those of other notebooks, in order; only the head has them."""

    runs: list[str]


@dataclass(frozen=True, slots=True)
class Forgotten(Event):
    """The agent dropped blobs to stay within its limits; they are sent again if needed."""

    digests: list[str]


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """Events were not kept, for lack of room: so many ``shown`` to the user, and ``others``."""

    shown: int
    others: int


Event.kinds.update({_kind(cls.__name__): cls for cls in Event.__subclasses__()})


def decode_event(message: Message) -> Event:
    """Return the event in ``message``.

    Raises
    ------
    ProtocolError
        If it is unknown or malformed.
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
