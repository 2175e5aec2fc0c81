"""A process that carries out calls for a rank, forked from it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import select
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from jupyter_sky.node.blobs.partial_blob import drop_unfinished
from jupyter_sky.node.kills import Kills
from jupyter_sky.node.pipes import has_pipe, pipes_of
from jupyter_sky.node.rank import streams
from jupyter_sky.node.rank.seeds import draw_seeds
from jupyter_sky.node.started_processes import find, kill_each
from jupyter_sky.transport.protocol.calls import TellFields
from jupyter_sky.transport.protocol.events import Told
from jupyter_sky.transport.protocol.rank_messages import TellCommand

_END_WITHIN = 1.0  # seconds
_READ = 64 * 1024

_CLEANERS = ("resource_tracker", "torch_shm_manager")
"""What is in the commands of helpers of Python, joblib and torch."""

_CALL_OF = "JUPYTER_SKY_CALL"
"""The variable that tells which of these processes has started another one."""

_LOOK_EVERY = 1.0
"""Seconds between two looks whether a process has ended: its children keep its pipe open."""

_forking = threading.Lock()
"""Held by who forks: a child that has another's ends of its pipes would keep them open."""

_NEXT = "next"
"""What a child sends when it waits for what the notebook says to its call."""

Mail = queue.SimpleQueue[TellCommand | None]
"""What the notebook says to a call; ``None`` if it says nothing any more."""

Answer = Callable[[TellCommand, Callable[[Told], object], Callable[[], TellFields | None]], Told]
"""Carries out a call, with what tells the notebook something and waits for what it says."""


class CallProcess:
    """A child process of this rank, used by a single thread.

    Parameters
    ----------
    answer
        Called in the child for each call.
    tell
        Sends a message to the notebook, in the thread that called.
    folder
        The folder of blobs, in which it writes results.

    Attributes
    ----------
    was_late
        Whether it was ended because its last call exceeded its time.
    reason
        Why it has ended, if it did so by itself and that is known.
    """

    def __init__(self, answer: Answer, tell: Callable[[Told], object], folder: Path) -> None:
        self.was_late = False
        self.reason = ""
        self._kills = Kills()
        self._tell = tell
        self._folder = folder
        self.is_over = False
        self._mark = uuid.uuid4().hex
        forks = multiprocessing.get_context("fork")
        with _forking, streams.nobody_writes():
            streams.flush()  # otherwise the child would have them, too
            self._pipe, theirs = forks.Pipe()
            self._printed = _Printed()
            arguments = (answer, theirs, self._printed.theirs, self._mark)
            self._process = forks.Process(target=_serve, args=arguments, daemon=True)
            try:
                self._process.start()
            except BaseException:
                self._printed.close_ours()
                raise
            finally:
                theirs.close()
                self._printed.close_theirs()
        self._began = 0.0
        with contextlib.suppress(psutil.Error, OSError):
            self._began = psutil.Process(self._process.pid).create_time()
        self._printed.start()

    def call(self, told: TellCommand, timeout: float | None, mail: Mail) -> Told | None:
        """Carry out a call; return ``None`` if the process has ended or its time is over."""
        until = None if timeout is None else time.monotonic() + timeout
        self._printed.call = told["number"]

        def left() -> float | None:
            return None if until is None else max(0.0, until - time.monotonic())

        def has_message() -> bool:
            rest = left()
            while not self._pipe.poll(_LOOK_EVERY if rest is None else min(rest, _LOOK_EVERY)):
                if rest == 0:
                    return False
                if not self._process.is_alive() and not self._pipe.poll():
                    raise EOFError
                rest = left()
            return True

        is_lost = False
        try:
            self._pipe.send(told)
            while has_message():
                said: Any = self._pipe.recv()
                if said == _NEXT:
                    self._pipe.send(mail.get(timeout=left()))
                elif said.kind not in ("ask", "waits", "goes_on"):
                    answer: Told = said
                    self._printed.drain()  # output comes before the result
                    return answer
                else:
                    self._printed.drain()
                    self._tell(said)
            self.was_late = True
        except queue.Empty:
            self.was_late = True
        except (OSError, EOFError):
            is_lost = True
        self.end(is_lost)
        if is_lost and (status := self._process.exitcode) is not None:
            killed = status < 0
            self.reason = self._kills.explain(-status) if killed else f"it exited with {status}"
        return None

    def stop(self, mail: Mail) -> None:
        """Stop the current call from another thread, by ending the process."""
        self.is_over = True
        self._kill()
        mail.put(None)  # the caller may be waiting there

    def end(self, is_lost: bool = False) -> None:
        """End the process, which has ended by itself if it ``is_lost``."""
        self.is_over = True
        self._pipe.close()
        self._kill()
        self._process.join(_END_WITHIN)
        if is_lost or self._process.exitcode != -signal.SIGKILL:
            self._kill_left()
        drop_unfinished(self._folder, self._process.pid or 0)
        self._printed.drain()
        self._printed.call = 0

    def _kill(self) -> None:
        """Kill the process, and those that it has started, which nobody else would end."""
        started: list[psutil.Process] = []
        if self._process.is_alive():
            started += find(lambda each: not _cleans_up(each), below=self._process.pid)
        self._process.kill()
        kill_each(started)

    def _kill_left(self) -> None:
        """Kill what the process has started, if it had ended before it was killed, as by Stop.

        What was its child is the fork server's by then, whose child this rank is.
        """
        kill_each(find(self._is_from_here, below=os.getppid()))

    def _is_from_here(self, process: psutil.Process) -> bool:
        # Linux lets who reads the variables of a hanging process wait: those of ranks are not read.
        if process.create_time() < self._began:
            return False
        is_from = self._printed.has_from(process) or process.environ().get(_CALL_OF) == self._mark
        return is_from and not _cleans_up(process)


def _cleans_up(process: psutil.Process) -> bool:
    """Return whether a process removes shared memory of those that end; then it ends, too."""
    with contextlib.suppress(psutil.Error):
        return any(each in word for word in process.cmdline() for each in _CLEANERS)
    return False


class _Printed:
    """The output of a process and its children: pipes, which a thread reads until they are closed.

    Attributes
    ----------
    theirs
        The ends that the process writes to.
    call
        The call that prints; 0 for none.
    """

    def __init__(self) -> None:
        self.call = 0
        pipes = [os.pipe(), os.pipe()]
        self._ours = {pipe[0]: fd for pipe, fd in zip(pipes, (1, 2), strict=True)}
        self.theirs = [pipe[1] for pipe in pipes]
        self._reading = threading.Lock()
        for fd in self._ours:
            os.set_blocking(fd, False)

    def start(self) -> None:
        """Start to read, in a thread."""
        threading.Thread(target=self._read_all, name="sky-printed", daemon=True).start()

    def close_theirs(self) -> None:
        """Close the ends that the child writes to."""
        for fd in self.theirs:
            os.close(fd)

    def close_ours(self) -> None:
        """Close the ends to read from, if there is no process after all."""
        while self._ours:
            os.close(self._ours.popitem()[0])

    def has_from(self, process: psutil.Process) -> bool:
        """Return whether a process prints here, as one that was forked without a new program."""
        with self._reading:
            ours = pipes_of(self._ours)
        return has_pipe(process.pid, ours, ("1", "2"))

    def drain(self) -> None:
        """Pass on what was printed so far: as much as a pipe can hold."""
        with self._reading:
            for ours in list(self._ours):
                for _ in range(2):
                    self._read(ours)

    def _read_all(self) -> None:
        while self._ours:
            poll = select.poll()
            for ours in self._ours:
                poll.register(ours, select.POLLIN)
            for ours, _ in poll.poll():
                with self._reading:
                    if self._read(ours):
                        del self._ours[ours]
                        os.close(ours)

    def _read(self, ours: int) -> bool:
        """Read once; return whether the pipe is closed."""
        try:
            data = os.read(ours, _READ)
        except BlockingIOError:
            return False
        if data:
            streams.relay(self._ours[ours], data, self.call)
        return not data


def _serve(answer: Answer, pipe: Any, printed: Sequence[int], mark: str) -> None:
    def wait() -> TellFields | None:
        pipe.send(_NEXT)
        told: TellFields | None = pipe.recv()
        return told

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A call may start processes, as workers of a DataLoader. To this rank it stays a daemon.
    multiprocessing.current_process().daemon = False
    os.environ[_CALL_OF] = mark
    draw_seeds()
    for fd, pipe_end in zip((1, 2), printed, strict=True):
        os.dup2(pipe_end, fd)
        os.close(pipe_end)
    try:
        while True:
            said = answer(pipe.recv(), pipe.send, wait)
            streams.flush()
            pipe.send(said)
    except (EOFError, OSError):
        pass
