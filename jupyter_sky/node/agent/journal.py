"""The journal: every event of an agent, numbered, so that a client can take up where it left off.

What we want: a notebook whose link broke, or whose kernel was restarted, misses no event, however
long it was away. A notebook that is connected gets each event at once. Neither a rank that prints
gigabytes nor a client that reads slowly makes the agent's memory grow.

Things that don't work:

- A queue for each client. It grows as long as the client is away, and a client that is new has no
  queue with what happened before.
- Keeping all events in memory, or only the last few: the first has no bound, the second has gaps.
- Writing whole events to disk. What ranks print is most of it, and their logs have that already:
  everything would be written twice.

Solution: events are numbered from 1, and each is appended to a spool file. A table has the offset
of each in that file: eight bytes an event are all that stays in memory for ever. An event of output
is spooled without its text; in its place stands where the rank's log has it. The most recent events
are kept in memory as well, encoded as frames, since connected clients ask for them at once. A
client only has to say the last number that it has: see `client_session.ClientSession.pump`.
"""

from __future__ import annotations

import array
import collections
import io
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.transport.frames import PREFIX, Message, decode_message, encode

_RECENT = 512
_RECENT_BYTES = 8 * 1024 * 1024


class Journal:
    """Numbered events, first number 1.

    Parameters
    ----------
    path
        The spool file.
    read_log
        Takes rank, offset and size, and returns those bytes of the rank's log.
    """

    def __init__(self, path: Path, read_log: Callable[[int, int, int], bytes]) -> None:
        self._file = path.open("w+b", buffering=0)
        self._read_log = read_log
        self._offsets = array.array("Q", [0])
        self._recent: collections.deque[bytes] = collections.deque()
        self._recent_bytes = 0

    @property
    def last(self) -> int:
        """Number of the newest event; 0 before the first."""
        return len(self._offsets) - 1

    def append(self, message: Message, logged: tuple[int, int] | None = None) -> None:
        """Add an event.

        Parameters
        ----------
        message
            The event as it goes over the wire, but for its number ``n``.
        logged
            Offset and size of its ``data`` in the rank's log, if the log has it.
        """
        message = {**message, "n": self.last + 1}
        frame = encode(message)
        spooled = frame if logged is None else encode({**message, "data": b"", "logged": logged})
        try:
            self._file.write(spooled)
        except OSError:
            # No room on the disk: connected clients get the event from memory.
            spooled = b""
        self._offsets.append(self._offsets[-1] + len(spooled))
        self._recent.append(frame)
        self._recent_bytes += len(frame)
        while len(self._recent) > _RECENT or self._recent_bytes > _RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft())

    def frame(self, number: int) -> bytes:
        """Return an event as a frame, from memory if it is recent."""
        oldest = self.last - len(self._recent) + 1
        if number >= oldest:
            return self._recent[number - oldest]
        message = self._spooled(number)
        if "logged" in message:
            offset, size = message.pop("logged")
            message["data"] = self._read_log(message["rank"], offset, size)
        return encode(message)

    def _spooled(self, number: int) -> Message:
        start, end = self._offsets[number - 1], self._offsets[number]
        self._file.seek(start)
        frame = self._file.read(end - start)
        self._file.seek(0, io.SEEK_END)
        return decode_message(frame[PREFIX.size :])
