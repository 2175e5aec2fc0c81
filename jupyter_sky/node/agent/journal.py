"""The journal: every event of an agent, numbered and spooled to disk.

A client that lost its link comes back with the last number it has and misses nothing. What a rank
printed is not written twice: the journal notes where it stands in the rank's log.
"""

from __future__ import annotations

import array
import collections
import io
from collections.abc import Iterator
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
        Gives ``size`` bytes at ``offset`` of a rank's log.
    """

    def __init__(self, path: Path, read_log) -> None:
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
        """Write down an event; ``logged`` is offset and size of its ``data`` in the rank's log."""
        message = {**message, "n": self.last + 1}
        frame = encode(message)
        spooled = frame if logged is None else encode({**message, "data": b"", "logged": logged})
        try:
            self._file.write(spooled)
        except OSError:
            # No room on the disk: who is connected gets it from memory.
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

    def messages(self, first: int) -> Iterator[Message]:
        """Yield the events from number ``first`` on, without the text that stands in the logs."""
        for number in range(first, self.last + 1):
            yield self._spooled(number)

    def _spooled(self, number: int) -> Message:
        start, end = self._offsets[number - 1], self._offsets[number]
        self._file.seek(start)
        frame = self._file.read(end - start)
        self._file.seek(0, io.SEEK_END)
        return decode_message(frame[PREFIX.size :])
