"""The journal: every event of an agent, numbered, so that a client can take up where it left off.

What we want: a notebook whose link broke, or whose kernel was restarted, misses no event, however
long it was away. A notebook that is connected gets each event at once. Neither a rank that prints
gigabytes nor a client that reads slowly makes the agent's memory grow, or fills the node's disk.

Things that don't work:

- A queue for each client. It grows as long as the client is away, and a client that is new has no
  queue with what happened before.
- Keeping all events in memory, or only the last few: the first has no bound, the second has gaps.
- Writing whole events to disk. What ranks print is most of it, and their logs have that already:
  everything would be written twice.
- One file that only grows. Ranks that display figures for a week fill any disk, and on a full disk
  the event that says how a run ended is lost with the rest.

Solution: events are numbered from 1, and each is written to one of two files of limited size, in
which new events take the place of the oldest (`spool.Spool`): one for what ranks show, of which
there can be any amount, and one for what happens to ranks and runs. A third file has the place of
each event (`spool.Places`): one bit an event, which says of what kind it was, is all that stays in
memory for ever. An event of output is spooled without its text; in its place stands where the
rank's log has it. The most recent events are kept in memory as well, encoded as frames, since
connected clients ask for them at once. What happens to ranks and runs also stays in memory if the
disk is full. In place of events that were not kept, a client gets one that says how many they were
(`protocol.events.Lost`).

A client only has to say the last number that it has: see `client_session.ClientSession.pump`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.node.agent.spool import Places, Spool
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
    """Numbered events, first number 1.

    Parameters
    ----------
    folder
        Where its files are.
    read_log
        Takes rank, offset and size, and returns those bytes of the rank's log.
    shown_limit, state_limit
        Bytes to keep of what ranks show, and of other events.
    """

    def __init__(
        self,
        folder: Path,
        read_log: Callable[[int, int, int], bytes],
        shown_limit: int = SHOWN_LIMIT,
        state_limit: int = STATE_LIMIT,
    ) -> None:
        self._read_log = read_log
        self._shown = Spool(folder / "journal.shown", shown_limit)
        self._states = Spool(folder / "journal", state_limit)
        self._places = Places(folder / "journal.places")
        self._last = 0
        self._shown_bits = bytearray(1)  # of which the first is that of number 0
        self._recent: collections.deque[bytes] = collections.deque()
        self._briefs: collections.deque[Brief | None] = collections.deque()  # of the same events
        self._recent_bytes = 0
        self._unwritten: collections.OrderedDict[int, bytes] = collections.OrderedDict()
        self._unwritten_bytes = 0
        self._state_limit = state_limit

    @property
    def last(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._last

    def append(self, message: Message, logged: tuple[int, int] | None = None) -> None:
        """Add an event.

        Parameters
        ----------
        message
            The event as it goes over the wire, but for its number ``n``.
        logged
            Offset and size of its ``data`` in the rank's log, if the log has it.
        """
        number = self.last + 1
        message = {**message, "n": number}
        frame = encode(message)
        record = frame if logged is None else encode({**message, "data": b"", "logged": logged})
        is_shown = message["event"] in _SHOWN
        position = (self._shown if is_shown else self._states).append(record)
        kept = position is not None and self._places.add(number, position, len(record))
        if not kept and not is_shown:
            self._keep_in_memory(number, frame)
        self._last = number
        self._note_kind(number, is_shown)
        self._recent.append(frame)
        self._briefs.append(brief_of(message))
        self._recent_bytes += len(frame)
        while len(self._recent) > _RECENT or self._recent_bytes > _RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft())
            self._briefs.popleft()

    def read(self, number: int) -> tuple[bytes, int]:
        """Return an event as a frame, and the number of the one to read next.

        In place of events that were not kept there is one that says so, for all of them.
        """
        first, shown = number, 0
        while number <= self.last:
            if frame := self._frame(number):
                if number == first:
                    return frame, number + 1
                break
            shown += self._is_shown(number)
            number += 1
        lost = Lost(shown=shown, others=number - first - shown)
        return encode({**lost.message(), "n": number - 1}), number

    def brief(self, number: int) -> Brief | None:
        """Return a recent event in few words, if there are such words for it."""
        at = number - (self.last - len(self._briefs) + 1)
        return self._briefs[at] if 0 <= at < len(self._briefs) else None

    def _frame(self, number: int) -> bytes | None:
        """Return an event, from memory if it is recent; ``None`` if it was not kept."""
        oldest = self.last - len(self._recent) + 1
        if number >= oldest:
            return self._recent[number - oldest]
        if frame := self._unwritten.get(number):
            return frame
        if (place := self._places.find(number)) is None:
            return None
        record = (self._shown if self._is_shown(number) else self._states).read(*place)
        return self._with_text(number, record) if record else None

    def _with_text(self, number: int, record: bytes) -> bytes | None:
        """Return an event as it was before its text was left to the rank's log.

        ``None`` also for what is damaged: a client would close its link because of it, again and
        again.
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

    def _note_kind(self, number: int, is_shown: bool) -> None:
        at, bit = divmod(number, 8)
        if at == len(self._shown_bits):
            self._shown_bits.append(0)
        self._shown_bits[at] |= is_shown << bit

    def _is_shown(self, number: int) -> bool:
        at, bit = divmod(number, 8)
        return bool(self._shown_bits[at] >> bit & 1)

    def _keep_in_memory(self, number: int, frame: bytes) -> None:
        self._unwritten[number] = frame
        self._unwritten_bytes += len(frame)
        while self._unwritten_bytes > self._state_limit:
            _, oldest = self._unwritten.popitem(last=False)
            self._unwritten_bytes -= len(oldest)
