"""The standard streams of a rank: pipes to its agent.

Calls that run at once write to the same pipes. What Python writes is told apart by its thread: that
of a call, and those which that one has started. A call in a process has pipes of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jupyter_sky.transport.streams import call_mark, mark

_OUT_OF_THE_WAY = 64
"""The least number of a descriptor that nobody counts on."""

_libc = ctypes.CDLL(None)


def redirect(out: int, err: int) -> None:
    """Make two descriptors the standard output and error of this process, and close its input."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    for fd in (1, 2):
        _kept[fd] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    order = _Order()
    sys.stdout = _streams[1] = _text_stream(1, order)
    sys.stderr = _streams[2] = _text_stream(2, order)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def flush() -> None:
    """Write out what was printed: what Python holds back, and what the C library does."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(Exception):
            getattr(sys, name).flush()
    _libc.fflush(None)


def end_of_run() -> None:
    """Write out what was printed, and mend what the user's code has closed: runs follow."""
    for fd, kept in _kept.items():
        try:
            # A program may have left it as it likes it, and all that write to the pipe share that.
            os.set_blocking(fd, True)
        except OSError:
            os.dup2(kept, fd)
    flush()
    for fd, name in ((1, "stdout"), (2, "stderr")):
        own = _streams[fd]
        if _is_closed(own) and own.order is not None:
            _streams[fd] = _text_stream(fd, own.order)
        if _is_closed(getattr(sys, name, None)):
            setattr(sys, name, _streams[fd])


@contextlib.contextmanager
def errors_printed() -> Iterator[None]:
    """Print an error and go on, where the user's code may raise one and the rank has more to do."""
    try:
        yield
    except Exception:
        traceback.print_exc()


def _is_closed(stream: Any) -> bool:
    try:
        return stream is None or bool(getattr(stream, "closed", False))
    except ValueError:  # its buffer was taken from it
        return True


@dataclass(eq=False)
class Author:
    """Who writes: a call of several at once, by its number; 0 if that is over, or unknown."""

    call: int


def current_call() -> int:
    """Return the call that this thread belongs to; 0 if to none of several."""
    author: Author | None = vars(threading.current_thread()).get("_sky_author")
    return author.call if author else 0


@contextlib.contextmanager
def written_by(call: int) -> Iterator[None]:
    """Let what this thread writes, and those that it starts, be a call's."""
    author = vars(threading.current_thread())["_sky_author"] = Author(call)
    _authors.add(author)
    try:
        yield
    finally:
        _authors.discard(author)
        author.call = 0  # threads that go on are nobody's


@contextlib.contextmanager
def several_calls() -> Iterator[None]:
    """Tell apart what calls write that run at once, each `written_by` one."""
    threads = vars(threading)["Thread"]
    usual_start = threads.start

    def start(thread: threading.Thread) -> None:
        if author := vars(threading.current_thread()).get("_sky_author"):
            vars(thread)["_sky_author"] = author
        usual_start(thread)

    orders = {stream.order for stream in _streams.values() if stream.order}
    threads.start = start
    for order in orders:
        order.tells_calls_apart = True
    try:
        yield
    finally:
        if threads.start is start:  # unless the user's code has put something around it
            threads.start = usual_start
        for author in list(_authors):
            author.call = 0  # of calls that have not ended; another's may have the same number
        for order in orders:
            order.end_calls()


@contextlib.contextmanager
def nobody_writes() -> Iterator[None]:
    """Keep threads of calls from writing: a child has their locks as they are when it is forked."""
    with contextlib.ExitStack() as held:
        for order in {stream.order for stream in _streams.values() if stream.order}:
            held.enter_context(order.lock)
        yield


def relay(fd: int, data: bytes, call: int) -> None:
    """Write what a process of a call has written to its standard output or error."""
    stream = _streams.get(fd)
    if stream is not None and stream.order is not None:
        stream.order.write(stream, data, call)


class _Order:
    """Leaves marks where Python goes on with another stream, so that the agent knows the order.

    Attributes
    ----------
    current
        The stream that was written to last.
    tells_calls_apart
        Whether there are marks too where another call goes on.
    lock
        Held by who writes, while calls are told apart.
    """

    def __init__(self) -> None:
        self.current: _TextStream | None = None
        self.tells_calls_apart = False
        self._pipes = {fd: os.fstat(fd).st_ino for fd in (1, 2)}
        self._number = 0
        self.lock = threading.RLock()
        # A child that the user's code forks would count for itself.
        os.register_at_fork(after_in_child=self._end)

    def switch(self, stream: _TextStream) -> None:
        """Let what is written from now on come after what was written so far."""
        with self.lock:
            before, self.current = self.current, stream
            if before is stream:
                return
            if before is not None and not _is_closed(before):
                before.flush()
            if self._leads_elsewhere():
                return
            self._number += 1
            if before is not None:
                os.write(before.fd, mark(False, self._number))
            os.write(stream.fd, mark(True, self._number))

    def write(self, stream: _TextStream, text: str | bytes, call: int) -> int:
        """Write what a call has to say, whatever others write meanwhile."""
        with self.lock:
            if self.current is not stream:
                self.switch(stream)
            call = call if self.tells_calls_apart else 0
            if stream.call != call:
                self._tell_call(stream, call)
            if isinstance(text, str):
                return stream.write_now(text)
            stream.flush()
            stream.buffer.write(text)
            stream.buffer.flush()
            return len(text)

    def end_calls(self) -> None:
        """Let what is written from now on be no call's."""
        self.tells_calls_apart = False
        with self.lock:
            for stream in _streams.values():
                if stream.order is self and stream.call:
                    self._tell_call(stream, 0)

    def _tell_call(self, stream: _TextStream, call: int) -> None:
        stream.flush()
        stream.call = -1  # whatever ends this in between
        if not self._leads_elsewhere():
            os.write(stream.fd, call_mark(call))
        stream.call = call

    def _leads_elsewhere(self) -> bool:
        """Return whether the user's code has led the streams where marks are not wanted."""
        try:
            return any(os.fstat(fd).st_ino != pipe for fd, pipe in self._pipes.items())
        except OSError:  # or nowhere
            return True

    def _end(self) -> None:
        for stream in _streams.values():
            stream.order = None


class _TextStream(io.TextIOWrapper):
    """A text stream whose place among what the other one writes is kept.

    Attributes
    ----------
    fd
        The descriptor that it writes to, which stays open when it is closed.
    order
        What keeps it; ``None`` in a child.
    call
        The call that has written to it last.
    """

    fd: int
    order: _Order | None = None
    call = 0

    def write(self, text: str, /) -> int:
        """Write text, behind all that was written to either stream before."""
        order = self.order
        if order is not None and order.tells_calls_apart:
            return order.write(self, text, current_call())
        if order is not None and order.current is not self:
            order.switch(self)
        return super().write(text)

    def write_now(self, text: str) -> int:
        """Write text where the order is kept already."""
        return super().write(text)


def _text_stream(fd: int, order: _Order) -> _TextStream:
    raw = io.FileIO(fd, "w", closefd=False)
    stream = _TextStream(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    stream.fd, stream.order = fd, order
    return stream


_streams: dict[int, _TextStream] = {}
_kept: dict[int, int] = {}
"""The pipe of each stream once more, for where the user's code closes its descriptor."""
_authors: set[Author] = set()
