"""What the agent sends a client: events and answers, in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

from jupyter_sky.node.agent.events.cursor import Cursor
from jupyter_sky.node.agent.events.journal import Journal
from jupyter_sky.transport.frames import Message, encode
from jupyter_sky.transport.link import HIGH_WATER, Link
from jupyter_sky.transport.metrics.usage_history import Samples
from jupyter_sky.transport.protocol.agent_requests import CAUGHT_UP
from jupyter_sky.transport.together.ranks_done import Brief, JoinedEvents

HELD_FOR = 0.002  # seconds that events wait which nobody waits for: what follows goes with them

TAKEN_WITHIN = 0.05  # seconds in which it is said that a run was taken: most cells end before

_AT_ONCE = 64 * 1024  # bytes of events that are sent together

_TURN = 0.005  # seconds after which ranks and other clients have their turn


class EventFeed:
    """Sends a client the events of the journal, and the answers to its requests.

    A client that is slower than the events is served from the journal when it has room again: it
    misses nothing, and the agent's memory does not grow. One that was away for long is sent what it
    missed in turns: ranks and other clients do not wait for that.

    Each message wakes the client, which on one machine competes with the agent for processors. So
    messages that are not urgent are held for a moment and sent together with those that follow: the
    acceptance of a run, and the end of most of its ranks, which become one message (`ranks_done`).
    The beginning of the client's own run is sent with the next event. Everything is sent in the
    order of the journal, and an answer comes after the events that preceded it.

    Parameters
    ----------
    link
        The connection to the client.
    journal
        The events.

    Attributes
    ----------
    asked
        The last run that the client requested.
    """

    def __init__(self, link: Link, journal: Journal) -> None:
        self.asked: str | None = None
        self._link = link
        self._journal = journal
        self._cursor: Cursor | None = None
        self._turn: asyncio.Handle | None = None  # in which it is sent more, while it is behind
        self._has_history = 0
        self._held: deque[tuple[int, Message]] = deque()  # answers, each behind an event
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, since: int) -> None:
        """Send all events after one, now and from now on."""
        self._cursor = Cursor(self._journal, max(0, since) + 1)
        self.pump()

    def answer(self, number: int, answer: Message) -> None:
        """Send the answer to a request."""
        self._hold(number, answer)
        self.pump()

    def confirm(self, number: int, is_waited_for: bool) -> None:
        """Say soon that a run was taken."""
        self._hold(number, {})
        self._send_within(HELD_FOR if is_waited_for else TAKEN_WITHIN)

    def _hold(self, number: int, answer: Message) -> None:
        self._held.append((self._journal.last, {"re": number, **answer}))

    def finish(self) -> None:
        """Send what waits for its time."""
        if self._turn:
            self._turn.cancel()
            self._turn = None
        if self._timer or self._held:
            self.pump()

    def close(self) -> None:
        """Forget what is held, once the link is closed."""
        for each in (self._timer, self._turn):
            if each:
                each.cancel()
        self._held.clear()

    def pump(self, is_urgent: bool = True) -> None:
        """Send the events that the client does not have yet, as long as it accepts them.

        An error closes this client's connection alone: events come from a rank's link.

        Parameters
        ----------
        is_urgent
            Whether somebody may be waiting for the last of them; otherwise they are sent a moment
            later, or before whatever is sent next.
        """
        if self._turn:
            return None
        if not is_urgent and not self._link.unsent_bytes:
            return self._send_within(HELD_FOR) if self._has_news else None
        try:
            self._send_events()
        except Exception:
            logging.getLogger(__name__).exception("events could not be sent to a client")
            self._link.close()
        return None

    def _take_turn(self) -> None:
        self._turn = None
        self.pump()

    @property
    def _has_news(self) -> bool:
        """Whether there is more for it than that its run has begun."""
        journal, cursor = self._journal, self._cursor
        if cursor is None or cursor.is_at_end:
            return False
        return cursor.next != journal.last or journal.brief(cursor.next) != Brief(self.asked or "")

    def _send_within(self, seconds: float) -> None:
        due = (loop := asyncio.get_running_loop()).time() + seconds
        if self._link.closed or (self._timer and self._timer.when() <= due):
            return
        if self._timer:
            self._timer.cancel()
        self._timer = loop.call_at(due, self.pump)

    def _send_events(self) -> None:
        """Send what is held, and all events, as far as the client accepts them."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        cursor, link = self._cursor, self._link
        parts, size, is_behind = list[bytes](), 0, False
        turn_ends = time.monotonic() + _TURN
        while cursor and not cursor.is_at_end:
            together = self._together(cursor)
            if together and not together.has_ranks:
                break  # the beginning of its own run is sent with the next event
            while self._held and self._held[0][0] <= cursor.told:
                parts.append(encode(self._held.popleft()[1]))
            if size >= _AT_ONCE:
                link.send_encoded(b"".join(parts))
                parts, size = [], 0
            # Most answers do not wait for all, or who reads slowly would get none in time.
            if is_behind := link.unsent_bytes >= HIGH_WATER:
                break
            if together:
                cursor.next = together.last + 1
                frame = encode({**together.message(), **self._pop_taken(cursor)})
            else:
                frame = cursor.read() or b""
            parts.append(frame)
            size += len(frame)
            # Events in memory cost little: whoever lacks no others is sent all in order.
            is_far_behind = not self._journal.is_recent(cursor.next)
            if is_behind := is_far_behind and time.monotonic() >= turn_ends:
                self._turn = asyncio.get_running_loop().call_soon(self._take_turn)
                break
        late = deque(each for each in self._held if is_behind and CAUGHT_UP in each[1])
        parts += [encode(each[1]) for each in self._held if each not in late]
        self._held = late
        if parts:
            link.send_encoded(parts[0] if len(parts) == 1 else b"".join(parts))

    def _together(self, cursor: Cursor) -> JoinedEvents | None:
        """Return the next events that can be joined to one message, if any."""
        if cursor.has_lost:
            return None
        together = JoinedEvents(self.asked, cursor.next, self._journal.brief)
        is_end = together.count and together.last == self._journal.last
        return together if together.has_ranks or is_end else None

    def _pop_taken(self, cursor: Cursor) -> Message:
        """Return the next answer if it is due and merely confirms a request."""
        is_due = self._held and self._held[0][0] <= cursor.told
        return self._held.popleft()[1] if is_due and self._held[0][1].keys() == {"re"} else {}

    def send_report(self, message: Message) -> None:
        """Send a message that is not kept in the journal, unless the client is already behind."""
        if self._cursor and not self._turn and not self._link.unsent_bytes:
            self.pump()
            self._link.send(message)

    def send_history(self, samples: Samples) -> None:
        """Send the samples that the client does not have: all of them to a new client."""
        if not self._cursor or self._turn or self._link.unsent_bytes:
            return
        if (part := samples.after(self._has_history)) is not None:
            self._has_history = samples.last
            self.pump()
            self._link.send({"report": [], "history": part})
