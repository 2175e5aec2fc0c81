"""How metrics get from the processes of a script to the rank beside which it runs.

They go through a named pipe, whose path is in the environment; the system writes each line as one.
So a metric has left the process when `sky.log` returns. One that waited to be sent with others
would be lost when torchrun ends the process.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator, Mapping

PATH = "JUPYTER_SKY_METRICS"
"""The variable with the path of the pipe."""

_WHOLE = 512  # most bytes of a line: what every system writes atomically
_PATIENCE = 5000  # milliseconds
_MOST_RANKS = 100_000


class ScriptMetrics:
    """Writes metrics of this process to the pipe of its script.

    Parameters
    ----------
    path
        Where the pipe is.

    Raises
    ------
    OSError
        If nobody reads from it.
    """

    def __init__(self, path: str) -> None:
        self._pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._pid, self._rank = os.getpid(), _own_rank()
        self._is_over = False
        self._waits = True

    def log(self, values: Mapping[str, float], step: float | None) -> bool:
        """Write figures; where nobody takes them for a moment, they are left out.

        It returns whether they are of this process, and not of a child, as of a DataLoader: its
        parent's curves are not its.
        """
        rank = _own_rank()
        if os.getpid() != self._pid and rank == self._rank:
            return False
        if self._is_over:
            return True
        for name, value in values.items():
            try:
                self._write(_line(rank, step, name, value))
            except BlockingIOError:
                self._waits = False  # do not wait again for every metric
            except OSError:
                self._is_over = True
                break
        return True

    def _write(self, line: bytes) -> None:
        try:
            os.write(self._pipe, line)
        except BlockingIOError:
            if not self._waits:
                raise
            room = select.poll()
            room.register(self._pipe, select.POLLOUT)
            room.poll(_PATIENCE)
            os.write(self._pipe, line)
        self._waits = True


def _own_rank() -> int | None:
    """Return the rank that torchrun has given this process, if any."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() and len(rank) <= 6 else None


def _line(rank: int | None, step: float | None, name: str, value: float) -> bytes:
    while True:
        line = json.dumps([rank, step, name, value], ensure_ascii=False).encode() + b"\n"
        if len(line) <= _WHOLE:
            return line
        name = f"{name[:-2]}…"  # of letters that take four bytes each


def parse(lines: bytes) -> Iterator[tuple[int | None, float | None, str, float]]:
    """Yield rank, step, name and value of each line; malformed lines are skipped."""
    for line in lines.splitlines():
        try:
            rank, step, name, value = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if (
            (rank is None or (type(rank) is int and 0 <= rank < _MOST_RANKS))
            and (step is None or _is_number(step))
            and isinstance(name, str)
            and _is_number(value)
        ):
            yield rank, None if step is None else float(step), name, float(value)


def _is_number(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 1 << 1000)
