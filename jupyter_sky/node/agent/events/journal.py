"""The journal: all events of an agent, numbered, so that a client can resume where it left off.

What is wanted: a notebook whose link broke, or whose kernel was restarted, misses no event, however
long it was away. A connected notebook gets each event at once. Neither a rank that prints gigabytes
nor a slow client makes the agent's memory grow or fills the node's disk.

What does not work:

- A queue for each client. It grows for as long as the client is away, and a new client would have
  no queue with earlier events.
- Keeping all events in memory, or only the last few: the former is unbounded, the latter has gaps.
- Writing whole events to disk. Most of their bytes are output of ranks, which their logs have
  already: everything would be written twice.
- One growing file. Ranks that display figures for a week fill any disk, and on a full disk the
  event that says how a run ended is lost with the rest.

The solution: events are numbered from 1, and each is written to one of two rings of limited size,
in which new events replace the oldest (`spool.Spool`): one for what ranks show, which can be any
amount, and one for changes of state of ranks and runs. So output never replaces the latter, and
nothing stays in memory for ever. An event with output is spooled without its text, but with the
position of the text in the rank's log. The most recent events are kept in memory as well, encoded
as frames, since connected clients ask for them at once. If the disk is full, changes of state stay
in memory. In place of events that were not kept, a client gets one that says how many they were
(`protocol.events.Lost`); they are skipped at once, however many they are.

A client only has to send the last number that it has: see `cursor.Cursor`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.node.agent.events.spool import MOST, MemorySpool, Spool
from jupyter_sky.transport.frames import PREFIX, Message, ProtocolError, decode_message, encode
from jupyter_sky.transport.protocol.events import Lost
from jupyter_sky.transport.together.ranks_done import Brief, brief_of

SHOWN_LIMIT = 256 * 1024 * 1024
"""Bytes on the disk of what ranks show, beside their logs."""

STATE_LIMIT = 64 * 1024 * 1024
"""Bytes of other events, on the disk, and in memory while the disk is full."""

_SHOWN = frozenset({"output", "display", "metrics"})
_RECENT = 512
_RECENT_BYTES = 8 * 1024 * 1024


class Journal:
    """Events, numbered from 1.

    Parameters
    ----------
    folder
        The folder for its files.
    read_log
        Returns bytes of a rank's log, given rank, offset and size.
    shown_limit, state_limit
        Most bytes to keep of what ranks show, and of other events.
    most
        Most events to keep of either.
    """

    def __init__(
        self,
        folder: Path,
        read_log: Callable[[int, int, int], bytes],
        shown_limit: int = SHOWN_LIMIT,
        state_limit: int = STATE_LIMIT,
        most: int = MOST,
    ) -> None:
        self._read_log = read_log
        self._shown = Spool(folder / "journal.shown", shown_limit, most)
        self._states = Spool(folder / "journal", state_limit, most)
        self._unwritten = MemorySpool(state_limit)
        self._last = 0
        self._recent: collections.deque[bytes] = collections.deque()
        self._briefs: collections.deque[Brief | None] = collections.deque()  # compact forms
        self._recent_bytes = 0

    @property
    def last(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._last

    def append(self, message: Message, logged: tuple[int, int] | None = None) -> None:
        """Add an event.

        Parameters
        ----------
        message
            The event as a message, without its number ``n``.
        logged
            Offset and size of its ``data`` in the rank's log, if it is there.
        """
        number = self.last + 1
        message = {**message, "n": number}
        frame = encode(message)
        record = frame if logged is None else encode({**message, "data": b"", "logged": logged})
        if message["event"] in _SHOWN:
            self._shown.append(number, record)
        elif not self._states.append(number, record):
            self._unwritten.append(number, frame)
        self._last = number
        self._recent.append(frame)
        self._briefs.append(brief_of(message))
        self._recent_bytes += len(frame)
        while len(self._recent) > _RECENT or self._recent_bytes > _RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft())
            self._briefs.popleft()

    def read(self, number: int) -> tuple[bytes | Lost, int]:
        """Return an event as a frame, and the number of the event to read next.

        If it was not kept, return how many events are lost from there on. More may follow: it is
        not known of all of them at once that they cannot be read.
        """
        recent = self.last - len(self._recent) + 1
        if self.is_recent(number):
            return self._recent[number - recent], number + 1
        spools = (self._shown, self._states, self._unwritten)
        following = (spool.following(number) for spool in spools)
        kept = min((each for each in following if each is not None), default=recent)
        if kept == number and (frame := self._frame(number)):
            return frame, number + 1
        end = max(number + 1, min(kept, recent))
        return self._lost(number, end), end

    def is_recent(self, number: int) -> bool:
        """Return whether an event and all later ones are in memory."""
        return number > self.last - len(self._recent)

    def brief(self, number: int) -> Brief | None:
        """Return a recent event in compact form, if it has one."""
        at = number - (self.last - len(self._briefs) + 1)
        return self._briefs[at] if 0 <= at < len(self._briefs) else None

    def _frame(self, number: int) -> bytes | None:
        """Return an event that is not recent; ``None`` if it cannot be read."""
        if frame := self._unwritten.read(number):
            return frame
        record = self._shown.read(number) or self._states.read(number)
        return self._with_text(number, record) if record else None

    def _lost(self, start: int, end: int) -> Lost:
        """Return how many events of each kind are lost between two numbers.

        Where so many changes of state were dropped that it is not known when each was, as many of
        them count as there can be.
        """
        others = 0
        for spool in (self._states, self._unwritten):
            others += min(spool.dropped, max(0, min(end, spool.dropped_to + 1) - start))
            others += spool.following(start) == start
        others = min(others, end - start)
        return Lost(shown=end - start - others, others=others)

    def _with_text(self, number: int, record: bytes) -> bytes | None:
        """Return an event with its text, read from the rank's log.

        ``None`` also for a damaged event, which would make a client close its link again and again.
        """
        try:
            message = decode_message(record[PREFIX.size :])
        except ProtocolError:
            return None
        is_whole = PREFIX.unpack_from(record) == (len(record) - PREFIX.size, 0)
        if not is_whole or message.get("n") != number:
            return None
        if "logged" not in message:
            return record
        match message:
            case {"rank": int(rank), "logged": [int(offset), int(size)]}:
                del message["logged"]
            case _:
                return None
        try:
            data = self._read_log(rank, offset, size)
        except (OSError, KeyError, ValueError, OverflowError):
            return None
        return encode({**message, "data": data}) if len(data) == size else None
