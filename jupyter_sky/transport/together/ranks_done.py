"""One message for all ranks of a node that have finished a run without error.

What is wanted: a cell on a thousand ranks should cost the notebook as little as possible. Most
ranks tell it that the run has begun, which it knows; that the request was accepted, which it
expects; and that they are done, in the same words as the previous rank.

The solution: what ranks have in common is encoded on the node and sent as bytes. Who reads it
compares these with those that came before, from another node or of the run before, and mostly
neither decodes nor checks them again. Only numbers and times are of each rank. The journal keeps
each event as it was, with its number: who was away is sent them one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgpack

from jupyter_sky.transport.frames import Message, ProtocolError, decode_message
from jupyter_sky.transport.protocol.events import RankDone, decode_event

_COMMON = ("arrived", "bound", "begun")
_RANK, _SECONDS = {int}, {float, type(None)}
_PLAIN = frozenset({"event", "n", "run", "outcome", "rank", "seconds", *_COMMON})
_NOTHING: Mapping[str, Any] = {}


class Brief(NamedTuple):
    """An event in compact form.

    Attributes
    ----------
    run
        The run that has begun on the node, or that a rank has finished.
    rank, seconds
        The rank, and how long it took; ``None`` for the beginning of the run.
    common
        The rest, as far as the event has it.
    """

    run: str
    rank: int | None = None
    seconds: float | None = None
    common: Mapping[str, Any] = _NOTHING


def brief_of(event: Message) -> Brief | None:
    """Return the compact form of an event; ``None`` if it has none."""
    kind = event["event"]
    if kind == "run_began":
        return Brief(event["run"])
    if kind != "rank_done" or event.get("outcome") != "ok" or not _PLAIN.issuperset(event):
        return None
    if not isinstance(event.get("rank"), int) or "run" not in event:
        return None
    common = {name: event[name] for name in _COMMON if name in event}
    return Brief(event["run"], event["rank"], event.get("seconds"), common)


class JoinedEvents:
    """Events that leave a node as one message.

    Parameters
    ----------
    asked
        The run that the client itself has requested: it need not be told that this has begun.
    number
        Number of the first event; as many of the following as possible are added.
    brief
        Returns an event's compact form by its number, if it has one.

    Attributes
    ----------
    last
        Number of the last event.
    """

    def __init__(
        self, asked: str | None, number: int, brief: Callable[[int], Brief | None]
    ) -> None:
        self._asked = asked
        self._has_begun = False
        self._run = ""
        self._common = _NOTHING
        self._ranks: list[int] = []
        self._seconds: list[float | None] = []
        while (next_one := brief(number)) and self._add(next_one):
            number += 1
        self.last = number - 1

    @property
    def has_ranks(self) -> bool:
        """Whether it holds anything that the client does not know."""
        return bool(self._ranks)

    @property
    def count(self) -> int:
        """How many events it stands for."""
        return len(self._ranks) + self._has_begun

    def message(self) -> Message:
        """Return the message."""
        return {
            "event": "ranks_done",
            "run": self._run,
            "common": msgpack.packb(self._common, unicode_errors="surrogatepass"),
            "ranks": self._ranks,
            "seconds": self._seconds,
            "began": self._has_begun,
            "n": self.last,
        }

    def _add(self, brief: Brief) -> bool:
        """Add an event; return whether it could be joined with those before it."""
        if brief.rank is None:
            if brief.run != self._asked or self._has_begun or self._ranks:
                return False
            self._has_begun = True
            return True
        if self._ranks and (brief.run, brief.common) != (self._run, self._common):
            return False
        if self._has_begun and brief.run != self._asked:
            return False
        self._run, self._common = brief.run, brief.common
        self._ranks.append(brief.rank)
        self._seconds.append(brief.seconds)
        return True


class RanksDone:
    """Reads these messages of many nodes; it remembers the common part of the last one."""

    def __init__(self) -> None:
        self._common: bytes | None = None
        self._example = RankDone(0, "", "ok")

    def read(self, message: Mapping[str, Any]) -> list[RankDone]:
        """Return the events that a message stands for, in order, without the beginning of the run.

        Raises
        ------
        ProtocolError
            If it is malformed.
        """
        run, ranks, seconds = message.get("run"), message.get("ranks"), message.get("seconds")
        if not isinstance(run, str):
            raise ProtocolError("the run of ranks_done is malformed")
        if not isinstance(ranks, list) or not {*map(type, ranks)} <= _RANK:
            raise ProtocolError("the ranks of ranks_done are malformed")
        if not isinstance(seconds, list) or not {*map(type, seconds)} <= _SECONDS:
            raise ProtocolError("the seconds of ranks_done are malformed")
        if not math.isfinite(sum(filter(None, seconds))):
            raise ProtocolError("the seconds of ranks_done are not finite")
        if len(seconds) != len(ranks):
            raise ProtocolError("ranks_done has not as many seconds as ranks")
        if (common := message.get("common")) != self._common:
            self._remember(common)
        bound, arrived, begun = self._example.bound, self._example.arrived, self._example.begun
        return [
            RankDone(rank, run, "ok", None, None, False, bound, arrived, took, begun=begun)
            for rank, took in zip(ranks, seconds, strict=True)
        ]

    def _remember(self, common: Any) -> None:
        fields = decode_message(common) if isinstance(common, bytes) else {"": common}
        if not set(_COMMON).issuperset(fields):
            raise ProtocolError("what ranks_done says of all ranks is malformed")
        example = {"event": "rank_done", "rank": 0, "run": "", "outcome": "ok"}
        event = decode_event({**example, **fields})
        assert isinstance(event, RankDone)
        self._example, self._common = event, common


def events_in(message: Mapping[str, Any]) -> int:
    """Return how many events a message stands for, if it is such a message."""
    ranks = message.get("ranks")
    return len(ranks) + (message.get("began") is True) if isinstance(ranks, list) else 0
