"""Starts the fork server of an agent: by asking a template, or as a new process.

An agent does this before it imports anything else, so this module imports little.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_sky.paths import command_path
from jupyter_sky.transport.templates import asking
from jupyter_sky.transport.templates.inherited import OF_NOTEBOOK


def start_fork_server(folder: Path, spec: Mapping[str, Any]) -> tuple[socket.socket, int]:
    """Start the fork server of an agent.

    Parameters
    ----------
    folder
        The agent's folder.
    spec
        Its specification, from ``spec.json``.

    Returns
    -------
    socket.socket
        The agent's end of the socket to it; closing it ends the fork server.
    int
        Its process id. It is a child of this process, or of a template.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for name in OF_NOTEBOOK:
        os.environ.pop(name, None)
    # `python`, `torchrun` and `tensorboard` are those of the ranks, in all that these start.
    env = {**os.environ, "PATH": command_path(os.environ), **spec["env"]}
    place = asking.place(spec.get("templates"), spec, env)
    order: asking.Order = {
        "folder": str(folder),
        "path": spec["sys_path"],
        "env": env,
        "cwd": "",  # the specification has it, for each rank
    }
    pid = asking.ask(place, [theirs.fileno(), sys.stderr.fileno()], order)
    if not pid:
        theirs.set_inheritable(True)
        module = "jupyter_sky.node.forking.fork_server"
        words = asking.command(module, str(theirs.fileno()), str(folder), place)
        pid = os.posix_spawn(sys.executable, words, env)
    theirs.close()
    return ours, pid


def replace_streams(descriptor: int, *streams: int) -> None:
    """Have standard streams of this process be what a descriptor is, which is closed."""
    for stream in streams:
        os.dup2(descriptor, stream)
    if descriptor not in streams:
        os.close(descriptor)
