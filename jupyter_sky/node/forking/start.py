"""The agent's part in starting a fork server: it asks a template for one, or starts its own.

An agent starts it before it imports anything else, so that little is imported here.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_sky.transport.templates import asking


def start_fork_server(folder: Path, spec: Mapping[str, Any]) -> tuple[socket.socket, int]:
    """Start the fork server of an agent.

    Parameters
    ----------
    folder
        The agent's folder.
    spec
        Its specification, as ``spec.json`` has it.

    Returns
    -------
    socket.socket
        The agent's end of the socket to it, which is closed to end it.
    int
        Its process id. It is a child of this process, or of a template.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {**os.environ, **spec["env"]}
    place = asking.place(spec.get("templates"), spec, env)
    order: asking.Order = {
        "folder": str(folder),
        "path": spec["sys_path"],
        "env": env,
        "cwd": "",  # which is in the specification, for each
    }
    pid = asking.ask(place, [theirs.fileno(), sys.stderr.fileno()], order)
    if not pid:
        theirs.set_inheritable(True)
        module = "jupyter_sky.node.forking.fork_server"
        words = asking.command(module, str(theirs.fileno()), str(folder), place)
        pid = os.posix_spawn(sys.executable, words, env)
    theirs.close()
    return ours, pid
