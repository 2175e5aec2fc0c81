"""A process that carries out calls for a rank, forked from it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from typing import Any

from jupyter_sky.node.rank import streams
from jupyter_sky.transport.protocol.events import Told
from jupyter_sky.transport.protocol.rank_messages import TellCommand

_END_WITHIN = 1.0  # seconds


class CallProcess:
    """A child of this rank; each has one user, a thread.

    Parameters
    ----------
    answer
        Called in the child for each call.

    Attributes
    ----------
    was_late
        Whether it was ended because the time of its last call was over.
    """

    def __init__(self, answer: Callable[[TellCommand], Told]) -> None:
        self.was_late = False
        self.is_over = False
        forks = multiprocessing.get_context("fork")
        self._pipe, theirs = forks.Pipe()
        self._process = forks.Process(target=_serve, args=(answer, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, told: TellCommand, timeout: float | None) -> Told | None:
        """Carry out a call; ``None`` if the process has ended, or its time is over."""
        try:
            self._pipe.send(told)
            if self._pipe.poll(timeout):
                answer: Told = self._pipe.recv()
                return answer
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


def _serve(answer: Callable[[TellCommand], Told], pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        while True:
            pipe.send(answer(pipe.recv()))
            streams.flush()
    except (EOFError, OSError):
        pass
