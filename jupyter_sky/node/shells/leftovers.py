"""Ends processes that users left running in the shells of a node, when the cluster ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

import psutil

from jupyter_sky.node.started_processes import find, kill_each
from jupyter_sky.transport.protocol.agent_spec import SHELL_OF

_LOOKS = 3  # a process that was found may have started others meanwhile


def in_sessions(sessions: Collection[int]) -> list[psutil.Process]:
    """Return the processes of sessions, with or without the mark."""
    return _found(lambda process: os.getsid(process.pid) in sessions)


def kill_left(folder: str, others: Sequence[psutil.Process]) -> None:
    """Kill processes that were started in the shells of an agent.

    Parameters
    ----------
    folder
        The agent's folder.
    others
        Further processes, which may have ended.
    """
    own = os.getuid()
    for _ in range(_LOOKS):
        left = _found(
            lambda process: process.uids().real == own and process.environ().get(SHELL_OF) == folder
        )
        kill_each((*left, *others))
        if not left:
            return


def _found(is_meant: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    return [*find(lambda each: each.status() != psutil.STATUS_ZOMBIE and is_meant(each))]
