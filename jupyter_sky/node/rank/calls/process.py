"""A process that carries out calls for a rank, forked from it."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import time
from collections.abc import Callable
from typing import Any

from jupyter_sky.node.rank import streams
from jupyter_sky.transport.protocol.calls import TellFields
from jupyter_sky.transport.protocol.events import Told
from jupyter_sky.transport.protocol.rank_messages import TellCommand

_END_WITHIN = 1.0  # seconds

_NEXT = "next"
"""What a child sends when it waits for what the notebook says to its call."""

Mail = queue.SimpleQueue[TellCommand | None]
"""What the notebook says to a call; ``None`` if it says nothing any more."""

Answer = Callable[[TellCommand, Callable[[Told], object], Callable[[], TellFields | None]], Told]
"""Carries out a call, with what tells the notebook something and waits for what it says."""


class CallProcess:
    """A child of this rank; each has one user, a thread.

    Parameters
    ----------
    answer
        Called in the child for each call.
    tell
        Tells the notebook something, in the thread that has called.

    Attributes
    ----------
    was_late
        Whether it was ended because the time of its last call was over.
    """

    def __init__(self, answer: Answer, tell: Callable[[Told], object]) -> None:
        self.was_late = False
        self._tell = tell
        self.is_over = False
        forks = multiprocessing.get_context("fork")
        self._pipe, theirs = forks.Pipe()
        self._process = forks.Process(target=_serve, args=(answer, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, told: TellCommand, timeout: float | None, mail: Mail) -> Told | None:
        """Carry out a call; ``None`` if the process has ended, or its time is over."""
        until = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if until is None else max(0.0, until - time.monotonic())

        try:
            self._pipe.send(told)
            while self._pipe.poll(left()):
                said: Any = self._pipe.recv()
                if said == _NEXT:
                    self._pipe.send(mail.get(timeout=left()))
                elif said.kind != "ask":
                    answer: Told = said
                    return answer
                else:
                    self._tell(said)
            self.was_late = True
        except queue.Empty:
            self.was_late = True
        except (OSError, EOFError):
            pass
        self.end()
        return None

    def end(self) -> None:
        """End the process."""
        self.is_over = True
        self._pipe.close()
        self._process.kill()
        self._process.join(_END_WITHIN)


def _serve(answer: Answer, pipe: Any) -> None:
    def wait() -> TellFields | None:
        pipe.send(_NEXT)
        told: TellFields | None = pipe.recv()
        return told

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        while True:
            pipe.send(answer(pipe.recv(), pipe.send, wait))
            streams.flush()
    except (EOFError, OSError):
        pass
