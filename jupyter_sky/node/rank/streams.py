"""The standard streams of a rank: pipes to its agent."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
import threading

from jupyter_sky.transport.streams import mark

_libc = ctypes.CDLL(None)


def redirect(out: int, err: int) -> None:
    """Make two descriptors the standard output and error of this process, and close its input."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    order = _Order()
    sys.stdout = _text_stream(1, order)
    sys.stderr = _text_stream(2, order)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def flush() -> None:
    """Write out what was printed: what Python holds back, and what the C library does."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _libc.fflush(None)


class _Order:
    """Leaves marks where Python goes on with another stream, so that the agent knows the order."""

    def __init__(self) -> None:
        self.current: _TextStream | None = None
        self._pipes = {fd: os.fstat(fd).st_ino for fd in (1, 2)}
        self._number = 0
        self._lock = threading.Lock()
        # A child that the user's code forks would count for itself.
        os.register_at_fork(after_in_child=self._end)

    def switch(self, stream: _TextStream) -> None:
        """Let what is written from now on come after what was written so far."""
        with self._lock:
            before, self.current = self.current, stream
            if before is None or before is stream:
                return
            before.flush()
            if any(os.fstat(fd).st_ino != pipe for fd, pipe in self._pipes.items()):
                return  # the user's code has led them elsewhere, where marks are not wanted
            self._number += 1
            os.write(before.fileno(), mark(False, self._number))
            os.write(stream.fileno(), mark(True, self._number))

    def _end(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _TextStream):
                stream.order = None


class _TextStream(io.TextIOWrapper):
    """A text stream whose place among what the other one writes is kept."""

    order: _Order | None = None

    def write(self, text: str, /) -> int:
        """Write text, behind all that was written to either stream before."""
        order = self.order
        if order is not None and order.current is not self:
            order.switch(self)
        return super().write(text)


def _text_stream(fd: int, order: _Order) -> _TextStream:
    raw = io.FileIO(fd, "w", closefd=False)
    stream = _TextStream(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    stream.order = order
    return stream
