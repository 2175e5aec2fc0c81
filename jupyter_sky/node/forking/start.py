"""The agent's part in starting a fork server: it asks a template for one, or starts its own.

An agent starts it before it imports anything else, so that little is imported here.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ANSWERS_WITHIN = 5.0  # seconds for what takes milliseconds

_ROOM = 256
"""Bytes of the command line in which a fork of the template can write its own folder."""


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
    place = _place(spec, env)
    order = {"folder": str(folder), "path": spec["sys_path"], "env": env}
    pid = _fork_of_template(place, theirs, order) if place else 0
    if not pid:
        theirs.set_inheritable(True)
        module = [sys.executable, "-P", "-m", "jupyter_sky.node.forking.fork_server"]
        command = [*module, str(theirs.fileno()), str(folder), place, *[""] * _ROOM]
        pid = os.posix_spawn(sys.executable, command, env)
    theirs.close()
    return ours, pid


def _place(spec: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return where a template listens that would do; nothing where there can be none."""
    if not spec.get("templates") or sys.platform != "linux":
        return ""
    from jupyter_sky.node.forking.likeness import likeness

    try:
        return f"{spec['templates']}/{likeness(spec, env)}.template"
    except OSError:  # a system that hides what a process is
        return ""


def _fork_of_template(place: str, fork_server: socket.socket, order: Mapping[str, Any]) -> int:
    """Return the process id of a fork server that a template has forked; 0 if it has not."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_ANSWERS_WITHIN)
        try:
            sock.connect(place)
            socket.send_fds(sock, [b" "], [fork_server.fileno(), sys.stderr.fileno()])
            sock.sendall(json.dumps(order).encode())
            sock.shutdown(socket.SHUT_WR)
            return int(sock.recv(32) or 0)
        except OSError:
            return 0
