"""How ranks carry out calls that are sent one by one."""

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
        The number of calls at once on each rank. A single one runs in the rank's main thread, like
        a cell.
    executor
        How concurrent calls run: in a ``"thread"`` each, sharing the rank's variables and its GIL,
        or in a ``"process"`` each, which is forked from the rank and has a copy of its variables;
        what is on the notebook's GPU is on its processor there.
        ``"auto"`` stands for threads. The output of a call is shown where the call was made,
        whichever of its threads or processes prints it. With threads, output that does not come
        from Python (from a program or a C library) is shown where any of the concurrent calls was
        made.
    buffer
        The number of further calls that wait on each rank, so that it can begin the next one at
        once. This pays for short calls over a slow connection.

    Raises
    ------
    UsageError
        If an argument is invalid.

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
        """The description for ranks."""
        executor = "process" if self.executor == "process" else "thread"
        return {"concurrency": self.concurrency, "executor": executor}


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
