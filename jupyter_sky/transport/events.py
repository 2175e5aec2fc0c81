"""The vocabulary of what nodes tell: every event that an agent sends, as a small frozen dataclass.

On the wire an event is a message whose ``"event"`` is the name of its class in snake case; fields
that this version does not know are ignored, so that a newer agent can say more.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jupyter_sky.transport.error_report import ErrorReport
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.messages import Packed


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


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """The fork server has imported what it should; ``missing`` says what it could not."""

    versions: dict[str, str]
    missing: dict[str, str]


@dataclass(frozen=True, slots=True)
class RankStarted(Event):
    """A rank is there: a fresh process with an empty namespace."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankExited(Event):
    """A rank's process ended; what was in its namespace is lost.

    Attributes
    ----------
    reason
        How it ended, in words.
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
    """A rank entered the process group of a generation, or says in ``error`` why it did not."""

    rank: int
    generation: int
    error: ErrorReport | None


@dataclass(frozen=True, slots=True)
class Output(Event):
    """Bytes that a rank wrote to a stream: ``"stdout"`` or ``"stderr"``.

    Attributes
    ----------
    skipped_lines, skipped_bytes
        What was left out before them because there was too much to show; the log has it.
    """

    rank: int
    run: str | None
    stream: str
    data: bytes
    skipped_lines: int = 0
    skipped_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Display(Event):
    """Something rich that a rank displayed: ``kind`` is display, update, result or clear."""

    rank: int
    run: str | None
    kind: str
    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    transient: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunBegan(Event):
    """A run has begun here; who comes later finds in it how to take the run up.

    Attributes
    ----------
    ranks
        All that take part, also elsewhere.
    title
        What a person calls it.
    show
        The ranks whose output is shown.
    asked
        The names that are asked for afterwards, for each rank.
    """

    run: str
    ranks: list[int]
    title: str
    show: list[int]
    asked: dict[int, list[str]]


@dataclass(frozen=True, slots=True)
class RankDone(Event):
    """A rank came to the end of its part of a run.

    Attributes
    ----------
    outcome
        ``"ok"``, ``"error"`` or ``"interrupted"``.
    error
        Of an error: ``type``, ``module``, ``text``, ``traceback`` (lines), ``bases``, ``args``.
    values
        What was asked for, pickled, as ``blobs.pack`` writes it; the agent never unpickles it.
    broken
        The process group was broken to get here and has to be formed anew.
    bound
        Names that stand for another object than before, and those that the run was asked about and
        that stand for the same: as ``False``.
    arrived
        The shipments of names that the rank came to bind before the run; ``None`` if it cannot say.
    """

    rank: int
    run: str
    outcome: str
    error: ErrorReport | None = None
    values: Packed | None = None
    broken: bool = False
    bound: dict[str, bool] = field(default_factory=dict)
    arrived: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Leaving(Event):
    """The node is about to be taken away.

    Attributes
    ----------
    kind
        As in `jupyter_sky.transport.preemption.Interruption`.
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
    """The agent ends by itself; ``reason`` says why, in words."""

    reason: str


@dataclass(frozen=True, slots=True)
class Forgotten(Event):
    """The agent let go of blobs to stay within its limit; they have to be sent again."""

    digests: list[str]


Event.kinds.update({_kind(cls.__name__): cls for cls in Event.__subclasses__()})


def decode_event(message: Message) -> Event:
    """Return the event in ``message``."""
    kind = message.get("event", "")
    event = Event.kinds.get(kind)
    if event is None:
        raise ProtocolError(f"unknown event {kind!r}")
    known = _fields(kind)
    return event(**{name: value for name, value in message.items() if name in known})
