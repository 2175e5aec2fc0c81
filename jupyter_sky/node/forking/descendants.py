"""Ending what a rank has started, once its own process has ended.

Processes in the rank's group are easily found. Others, such as daemons, have a session of their
own, and the fork server becomes their parent when theirs ends. A program shows in its environment
which rank started it. A process that was forked without a new program shows the fork server's
environment instead, but has its rank's output pipes open, which other ranks and what they have
started do not.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping

import psutil

from jupyter_sky.node.pipes import has_pipe
from jupyter_sky.node.started_processes import find, kill_each

RANK_PID = "JUPYTER_SKY_RANK_PID"
"""The variable that tells which rank a process descends from."""


def kill_group(leader: int) -> None:
    """Kill a rank and the processes of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def kill_descendants(of: Mapping[int, frozenset[str]], besides: Collection[int]) -> None:
    """Kill processes that ranks have started in sessions of their own; called by the fork server.

    Parameters
    ----------
    of
        The ended ranks, with the names of the pipes of each.
    besides
        The ranks that live.
    """
    pids, pipes = {str(pid) for pid in of}, frozenset[str]().union(*of.values())

    def is_from(process: psutil.Process) -> bool:
        if process.pid in besides:
            return False
        return process.environ().get(RANK_PID) in pids or has_pipe(process.pid, pipes)

    kill_each(_find(is_from))


def kill_all() -> None:
    """Kill all processes below the fork server, which calls this."""
    kill_each(_find(lambda process: True))


def _find(is_meant: Callable[[psutil.Process], bool]) -> Iterator[psutil.Process]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return iter(())  # looking at all processes of a machine takes longer than all else here
    return find(is_meant, os.getpid())
