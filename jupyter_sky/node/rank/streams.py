"""The standard streams of a rank: pipes to its agent.

Concurrent calls write to the same pipes. Python's output is attributed by thread: that of a call,
and those that it has started. A call in a process has its own pipes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import resource
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jupyter_sky.node.rank.unseen_output import unseen
from jupyter_sky.transport.streams import call_mark, mark

_OUT_OF_THE_WAY = 64
"""The least number of a descriptor that nobody counts on; half the limit, if that is lower."""

_flush_of_c = ctypes.CDLL(None).fflush


def redirect(out: int, err: int) -> None:
    """Use two descriptors as standard output and error of this process, and close its input."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = _OUT_OF_THE_WAY if limit == resource.RLIM_INFINITY else min(_OUT_OF_THE_WAY, limit // 2)
    for fd in (1, 2):
        _kept[fd] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    order = _Order()
    sys.stdout = _streams[1] = _text_stream(1, order)
    sys.stderr = _streams[2] = _text_stream(2, order)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    _aside.keep_from_forks()


def flush() -> None:
    """Flush the buffers of Python and of the C library."""
    with contextlib.suppress(Exception):  # the user may have put something else there
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    _flush_of_c(None)


def flush_aside() -> None:
    """Flush standard output in a thread of ours, beside the user's code."""
    stream = sys.stdout
    # What the user has put there may start processes when it is flushed.
    with _aside.lock if stream is _streams[1] else contextlib.nullcontext():
        stream.flush()


def end_of_run() -> None:
    """Flush output, and restore streams that the user's code has closed, for later runs."""
    for fd, kept in _kept.items():
        try:
            # A program may have changed the flags of the pipe, which all its writers share.
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
    unseen.is_counting = True


def is_silenced() -> bool:
    """Return whether standard output goes to the rank's log alone, as within `sky.silent`."""
    try:
        log = os.fstat(int(os.environ["JUPYTER_SKY_LOG_FD"]))
        return os.path.samestat(log, os.fstat(1))
    except (KeyError, ValueError, OSError):  # the user's code may change both
        return False


@contextlib.contextmanager
def errors_printed() -> Iterator[None]:
    """Print an error of the user's code and continue, if the rank has more to do."""
    try:
        yield
    except Exception:
        traceback.print_exc()


def _is_closed(stream: Any) -> bool:
    try:
        return stream is None or bool(getattr(stream, "closed", False))
    except ValueError:  # its buffer was detached
        return True


@dataclass(eq=False)
class Author:
    """The author of output: the number of a concurrent call; 0 if it is over or unknown."""

    call: int


def current_call() -> int:
    """Return the concurrent call that this thread belongs to; 0 if none."""
    author: Author | None = vars(threading.current_thread()).get("_sky_author")
    return author.call if author else 0


@contextlib.contextmanager
def written_by(call: int) -> Iterator[None]:
    """Attribute output of this thread, and of threads that it starts, to a call."""
    author = vars(threading.current_thread())["_sky_author"] = Author(call)
    _authors.add(author)
    try:
        yield
    finally:
        _authors.discard(author)
        author.call = 0  # output of threads that continue belongs to no call


@contextlib.contextmanager
def several_calls() -> Iterator[None]:
    """Distinguish the output of concurrent calls (see `written_by`)."""
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
        if threads.start is start:  # unless the user's code has wrapped it
            threads.start = usual_start
        for author in list(_authors):
            author.call = 0  # of unfinished calls; a later one may have the same number
        for order in orders:
            order.end_calls()


@contextlib.contextmanager
def nobody_writes() -> Iterator[None]:
    """Keep calls from writing during a fork, since the child inherits their locks' states."""
    with contextlib.ExitStack() as held:
        for order in {stream.order for stream in _streams.values() if stream.order}:
            held.enter_context(order.lock)
        yield


def relay(fd: int, data: bytes, call: int) -> None:
    """Write the output of a call's process to standard output or error."""
    stream = _streams.get(fd)
    if stream is not None and stream.order is not None:
        stream.order.write(stream, data, call)


class _Aside:
    """Keeps forks waiting while a thread of ours flushes.

    A child that is forked meanwhile would inherit the lock of the stream as it is, and wait for
    ever when it prints; and what is being written would be written by both.

    Attributes
    ----------
    lock
        Held while flushing, and by whoever forks.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._is_held = False

    def keep_from_forks(self) -> None:
        """Have all forks from now on wait."""
        os.register_at_fork(
            before=self._acquire, after_in_parent=self._release, after_in_child=self._renew
        )

    def _acquire(self) -> None:
        # A Stop that comes meanwhile lets the fork go on.
        self._is_held = self.lock.acquire()

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            self.lock.release()

    def _renew(self) -> None:
        self.lock, self._is_held = threading.RLock(), False


class _Order:
    """Writes marks where Python switches streams, so that the agent knows the order.

    Attributes
    ----------
    current
        The stream that was written to last.
    tells_calls_apart
        Whether to write marks at switches between calls as well.
    lock
        Held while writing, if calls are distinguished.
    """

    def __init__(self) -> None:
        self.current: _TextStream | None = None
        self.tells_calls_apart = False
        self._pipes = {fd: os.fstat(fd).st_ino for fd in (1, 2)}
        self._number = 0
        self.lock = threading.RLock()
        # A child forked by the user's code would count separately.
        os.register_at_fork(after_in_child=self._end)

    def switch(self, stream: _TextStream) -> None:
        """Make sure that later output is ordered after the output so far."""
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
        """Write output of a call, whatever others write meanwhile."""
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
        """Attribute output from now on to no call."""
        self.tells_calls_apart = False
        with self.lock:
            for stream in _streams.values():
                if stream.order is self and stream.call:
                    self._tell_call(stream, 0)

    def _tell_call(self, stream: _TextStream, call: int) -> None:
        stream.flush()
        stream.call = -1  # whatever interrupts this
        if not self._leads_elsewhere():
            os.write(stream.fd, call_mark(call))
        stream.call = call

    def _leads_elsewhere(self) -> bool:
        """Return whether the user's code has redirected the streams, which excludes marks."""
        try:
            return any(os.fstat(fd).st_ino != pipe for fd, pipe in self._pipes.items())
        except OSError:  # or nowhere
            return True

    def _end(self) -> None:
        for stream in _streams.values():
            stream.order = None


class _TextStream(io.TextIOWrapper):
    """A text stream whose order relative to the other one is kept.

    Attributes
    ----------
    fd
        The descriptor that it writes to, which stays open if the stream is closed.
    order
        Keeps the order; ``None`` in a child.
    call
        The call that last wrote to it.
    """

    fd: int
    order: _Order | None = None
    call = 0

    def write(self, text: str, /) -> int:
        """Write text, ordered after everything written to either stream before."""
        order = self.order
        if unseen.is_counting:
            unseen.count(text)
        if order is not None and order.tells_calls_apart:
            return order.write(self, text, current_call())
        if order is not None and order.current is not self:
            order.switch(self)
        return super().write(text)

    def write_now(self, text: str) -> int:
        """Write text, with the order kept by the caller."""
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
_aside = _Aside()
