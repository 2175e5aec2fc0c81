"""The events of an agent: each is taken once, in the order of its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jupyter_sky.cluster.network import incoming
from jupyter_sky.cluster.network.node_faults import foreign_ranks
from jupyter_sky.cluster.network.requests.seen import Seen
from jupyter_sky.formatting import format_count
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.events import (
    Display,
    Event,
    Lost,
    Metrics,
    Output,
    RankDone,
    RankExited,
    decode_event,
)
from jupyter_sky.transport.together.ranks_done import RanksDone

_ENDS = RankDone | RankExited
_AFTER_LOST = Output | Display | Metrics | RankDone | RankExited | Lost


@dataclass(frozen=True)
class Taking:
    """The callbacks for received events.

    Attributes
    ----------
    event
        Called with each event that the others are not for.
    ends
        Called with ranks that have finished a run without error.
    foreign
        Called with the ranks of other nodes that an event, which was dropped, was about.
    """

    event: Callable[[Event], object]
    ends: Callable[[Sequence[RankDone]], object]
    foreign: Callable[[frozenset[int]], object]


class Events:
    """The events that come from one agent.

    Output that a node did not keep may be lost in many parts, between which other events were kept.
    It is told once, before what ranks show next.

    Parameters
    ----------
    taking
        The callbacks.
    reader
        Decodes the messages that ranks are done.
    seen
        Tells the agent which events have come; ``None`` if they count as unseen.

    Attributes
    ----------
    last
        Number of the last event.
    known
        Number of the last one whose effect the notebook knew when it connected.
    ranks
        The ranks that the agent may speak for.
    posted
        The last run that this notebook requested; the event that it has begun is ignored.
    """

    def __init__(self, taking: Taking, reader: RanksDone, seen: Seen | None) -> None:
        self.last = self.known = 0
        self.ranks: frozenset[int] = frozenset()
        self.posted: str | None = None
        self._taking = taking
        self._reader = reader
        self._seen = seen
        self._lost = 0  # events with output, of which it was not told yet

    def receive(self, message: Message) -> None:
        """Take the event in a message, or the events that it stands for.

        Raises
        ------
        ProtocolError
            If the message is malformed, or not the next one.
        """
        self.last = incoming.next_number(message, self.last)
        if message["event"] == "ranks_done":
            self._take_ends(self._reader.read(message), message["ranks"])
        elif message["event"] != "run_began" or message.get("run") != self.posted:
            self._take(decode_event(incoming.event_as_told(message)))

    def _take_ends(self, events: Sequence[RankDone], ranks: Sequence[int]) -> None:
        if not self.ranks.issuperset(ranks):
            for event in events:
                self._take(event)
        elif events:
            self._tell_lost()
            self._taking.ends(events)
            self._note_seen(events[0].run)

    def _take(self, event: Event) -> None:
        if foreign := foreign_ranks(event, self.ranks):
            self._taking.foreign(foreign)
            return
        if isinstance(event, Lost) and not event.others:
            self._lost += event.shown
            return
        if isinstance(event, _AFTER_LOST):
            self._tell_lost()
        self._taking.event(event)
        if isinstance(event, _ENDS):
            self._note_seen(event.run)

    def _tell_lost(self) -> None:
        if self._lost:
            lost, self._lost = Lost(self._lost, 0), 0
            self._taking.event(lost)

    def _note_seen(self, run: str | None) -> None:
        if self._seen:
            self._seen.note(self.last, at_once=run != self.posted)


def what_was_lost(where: str, shown: int) -> str:
    """Return the sentence about a node's events that were lost."""
    pieces = f"{format_count(shown, 'piece')} of output" if shown else "events"
    return (
        f"{pieces} of {where} are lost, as this notebook was not connected or slow, and the disk "
        "there was full or it was too much to keep: `%sky logs` shows what the ranks' logs have"
    )
