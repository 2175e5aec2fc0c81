"""How a rank carries out calls that it gets one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jupyter_sky.errors import UsageError
from jupyter_sky.transport.protocol.messages import Serving


@dataclass(frozen=True)
class Worker:
    """How a rank carries out the calls of ``gather``, ``&``, ``map`` and ``>``.

    Parameters
    ----------
    concurrency
        How many at once on each rank. One runs in the rank's main thread, as a cell does.
    executor
        Where several run: in a ``"thread"`` each, which share the rank's variables and its GIL, or
        in a ``"process"`` each, which is forked from the rank and has the variables that it had.
        ``"auto"`` stands for threads. What several at once print is shown where each was made, by
        whichever of its threads or processes it is printed; of a thread's, what does not come from
        Python (a program that it has started, a library in C) where one of them was made.
    buffer
        How many more calls wait on a rank, so that it goes on at once with the next. That is worth
        it for short calls over a slow connection.

    Raises
    ------
    UsageError
        When an argument is not possible.

    Examples
    --------
    >>> with sky.ComputePool(nodes=2, worker=sky.Worker(concurrency=4)) as pool:
    ...     pages = pool.map(download, urls)
    """

    concurrency: int = 1
    executor: Literal["auto", "thread", "process"] = "auto"
    buffer: int = 0

    def __post_init__(self) -> None:
        if not _is_count(self.concurrency, 1):
            raise UsageError(
                f"Worker(concurrency={self.concurrency!r}): give how many run at once, from 1."
            )
        if self.executor not in ("auto", "thread", "process"):
            raise UsageError(
                f"Worker(executor={self.executor!r}): a call runs in a 'thread' or a 'process'."
            )
        if not _is_count(self.buffer, 0):
            raise UsageError(f"Worker(buffer={self.buffer!r}): give how many calls wait, from 0.")

    @property
    def serving(self) -> Serving:
        """What ranks are told of it."""
        executor = "process" if self.executor == "process" else "thread"
        return {"concurrency": self.concurrency, "executor": executor}


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
