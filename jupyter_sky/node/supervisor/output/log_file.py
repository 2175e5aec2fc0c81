"""The log of a rank: all of its output, whether shown in the notebook or not.

A rank may print for weeks, so a log has a limit: its beginning and its end are kept. Readers are
told how much was dropped in between.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from jupyter_sky.formatting import format_bytes
from jupyter_sky.node.supervisor.output.log_end import LogEnd
from jupyter_sky.node.supervisor.output.log_index import LogIndex
from jupyter_sky.transport.protocol.agent_requests import LOG_BEGINNING, LOG_END

_SEARCHED = 256 * 1024  # bytes in which the last lines are searched among states of progress bars


class LogFile:
    """The log of one rank: the bytes of its streams, as they arrived.

    Offsets count all bytes that ever arrived, including dropped ones.

    Parameters
    ----------
    path
        The file of its beginning; its end and its index are in files beside it.
    beginning, end
        Most bytes to keep of each.

    Attributes
    ----------
    size
        Its size in bytes.
    index
        Its index.
    """

    def __init__(self, path: Path, beginning: int = LOG_BEGINNING, end: int = LOG_END) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._fd).st_size
        self._beginning = beginning
        self._end = LogEnd(path.with_suffix(".end"), beginning, end)
        self._missing = 0
        self._ends_line = True
        self.index = LogIndex(path.with_suffix(".index"))

    def append(self, data: bytes) -> int | None:
        """Append ``data`` and return its offset.

        If the disk is full, the data is left out of the log, which says so once there is room
        again, and ``None`` is returned; the data is still shown.
        """
        there = os.fstat(self._fd).st_size
        if there != min(self.size, self._beginning):  # the user has truncated it
            self.size = there
            self._end.clear()
        gap = _gap(self._missing) if self._missing else b""
        if not self._write(gap + data):
            self._missing += len(data)
            return None
        self._missing = 0
        self._ends_line = data.endswith(b"\n")
        offset = self.size + len(gap)
        self.size = offset + len(data)
        return offset

    def end_line(self) -> None:
        """Let what is written next begin a line, whatever came before it."""
        if not self._ends_line:
            self.append(b"\n")

    def _write(self, data: bytes) -> bool:
        """Append all of it or nothing; return whether it was written."""
        room = max(0, self._beginning - self.size)
        view = memoryview(data)[:room]
        try:
            while view:
                view = view[os.write(self._fd, view) :]
            self._end.write(data[room:], self.size + min(room, len(data)))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, min(self.size, self._beginning))
            return False
        return True

    def kept_from(self, offset: int) -> int:
        """Return ``offset`` or, if it was dropped, the next kept offset."""
        return offset if offset < self._beginning else max(offset, self._end.oldest)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes at ``offset``, up to the first dropped byte."""
        size = min(size, self.size - offset)
        if size <= 0 or self.kept_from(offset) != offset:
            return b""
        data = os.pread(self._fd, min(size, max(0, self._beginning - offset)), offset)
        if len(data) < size and self._end.oldest <= max(offset, self._beginning):
            data += self._end.read(offset + len(data), size - len(data))
        return data

    def tail_start(self, lines: int, limit: int) -> int:
        """Return the offset of the last lines, at most ``limit`` bytes before the end.

        A line ends where a terminal would begin the next one: all states of a progress bar are one
        line.
        """
        start = self._kept_end(limit)
        data = self.read(start, self.size - start)
        at = len(data) - data.endswith(b"\n")
        for _ in range(lines):
            at = data.rfind(b"\n", 0, at)
            if at < 0:
                return start
        return start + at + 1

    def tail(self, lines: int, limit: int) -> bytes:
        """Return the last lines as a terminal shows them, from at most ``limit`` bytes."""
        start = self.tail_start(lines, limit)
        return _without_overwritten(self.read(start, self.size - start))

    def shown(self, since: int, limit: int) -> bytes:
        """Return the end of what was written since an offset, at most ``limit`` bytes.

        Of a progress bar it has the last state: all of them would leave no room for other lines.
        """
        if self.size - since <= limit:
            return self.read(since, limit)
        start = max(since, self._kept_end(max(limit, _SEARCHED)))
        data = _without_overwritten(self.read(start, self.size - start))
        return data[max(0, len(data) - limit) :]

    def _kept_end(self, limit: int) -> int:
        """Return where the last ``limit`` bytes begin, as far as they are kept without a gap."""
        start = self.size - limit
        if start < self._beginning < self._end.oldest:
            start = self._end.oldest
        return max(0, self.kept_from(start))


def _without_overwritten(text: bytes) -> bytes:
    """Drop what a carriage return overwrites: the earlier states of a progress bar."""
    if b"\r" not in text:
        return text
    return b"\n".join(map(_last_state, text.split(b"\n")))


def _last_state(line: bytes) -> bytes:
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


def _gap(size: int) -> bytes:
    text = f"\n[… {format_bytes(size)} are missing here: there was no room on the disk …]\n"
    return text.encode()


class RankLogs:
    """The logs of a node's ranks, including removed ones.

    Parameters
    ----------
    folder
        Where they are.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._logs: dict[int, LogFile] = {}

    def open(self, rank: int) -> LogFile:
        """Return the log of a rank; its new processes continue the same log."""
        if rank not in self._logs:
            self._logs[rank] = LogFile(self._folder / f"rank{rank}.log")
        return self._logs[rank]

    def read(self, rank: int, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes at ``offset`` of a rank's log."""
        return self._logs[rank].read(offset, size)
