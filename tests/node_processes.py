"""The processes of a node: those of a fork server need not descend from the agent."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from jupyter_sky.node.forking import fork_server
from tests.waiting import until


def is_there(process: psutil.Process) -> bool:
    """Return whether a process has not ended, whether or not its parent has asked after it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def fork_server_of(agent: psutil.Process) -> psutil.Process:
    """Return the process that the ranks of an agent are forked from."""
    tops: list[psutil.Process] = []

    def has_one() -> bool:
        # A template that it leaves behind has its command line for a moment.
        found = {each.pid: each for each in psutil.process_iter() if _is_forked_for(agent, each)}
        tops[:] = [each for each in found.values() if _parent(each) not in (None, *found)]
        return len(tops) == 1

    until(has_one)
    return tops[0]


def processes_of_node(agent: psutil.Process) -> list[psutil.Process]:
    """Return an agent, its fork server, its ranks and what those have started."""
    top = fork_server_of(agent)
    return [agent, top, *top.children(recursive=True)]


@contextlib.contextmanager
def crowded(folder: Path) -> Iterator[None]:
    """Have so many wait at the socket of an agent, which is suspended, that nobody else can."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "agent.sock"))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(listener.getsockname())
        yield


def _parent(process: psutil.Process) -> int | None:
    """Return the id of its parent; ``None`` for a rank that has ended meanwhile."""
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return None


def _is_forked_for(agent: psutil.Process, process: psutil.Process) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return fork_server.__name__ in command and agent.cmdline()[4].rstrip("/") in command
