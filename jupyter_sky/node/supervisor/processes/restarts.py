"""Whether a rank whose process has ended, or could not be forked, gets another one."""

from __future__ import annotations

from typing import NamedTuple

_MOST_FAILED_STARTS = 3
_FORK_PAUSES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds before a process is asked for again; after the last, the rank is said not to come."""


class FailedFork(NamedTuple):
    """A process that could not be forked.

    Attributes
    ----------
    pause
        Seconds until another one is asked for.
    is_news
        Whether clients should be told: once at first, and once it is taken not to come.
    goes_on
        Whether it may come soon.
    """

    pause: float
    is_news: bool
    goes_on: bool


class Restarts:
    """Counts what has failed; processes that are ended on request do not count."""

    def __init__(self) -> None:
        self._killed: set[int] = set()
        self._failed_starts: dict[int, int] = {}
        self._failed_forks: dict[int, int] = {}

    def on_killed(self, pid: int) -> None:
        """Note that a process is ended on request."""
        self._killed.add(pid)

    def forget(self, rank: int) -> None:
        """Forget failed starts of a rank: it is new, or has done something."""
        self._failed_starts.pop(rank, None)

    def on_forked(self, rank: int) -> None:
        """Note that a rank has a process."""
        self._failed_forks.pop(rank, None)

    def on_not_forked(self, rank: int) -> FailedFork:
        """Note that the system had no process for a rank; the shortage may be temporary."""
        failed = self._failed_forks.get(rank, 0)
        self._failed_forks[rank] = failed + 1
        last = len(_FORK_PAUSES)
        pause = _FORK_PAUSES[min(failed, last - 1)]
        return FailedFork(pause, is_news=failed in (0, last), goes_on=failed < last)

    def is_worthwhile(self, rank: int, pid: int, has_run: bool) -> bool:
        """Return whether a rank whose process has ended gets another one.

        A rank that ends repeatedly before it has done anything will not recover.
        """
        failed = not has_run and pid not in self._killed
        self._killed.discard(pid)
        failures = self._failed_starts.get(rank, 0) + 1 if failed else 0
        self._failed_starts[rank] = failures
        return failures < _MOST_FAILED_STARTS
