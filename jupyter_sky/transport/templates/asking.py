"""Asking a template to fork a process."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

_ANSWERS_WITHIN = 5.0  # seconds, for something that takes milliseconds

ROOM = 256
"""Bytes of the command line in which a fork of the template can write its own folder."""

PLACE = "JUPYTER_SKY_TEMPLATE"
"""The variable that tells an agent where to leave a template, if the template was asked for before.
"""

AGENT = "jupyter_sky.node"
"""The module that an agent is started with."""


class Order(TypedDict):
    """What a fork of a template is to become.

    Attributes
    ----------
    folder
        The folder of the node that it works for.
    path
        Folders to import from first.
    env
        Its environment variables.
    cwd
        Its working folder; empty for the template's.
    """

    folder: str
    path: Sequence[str]
    env: Mapping[str, str]
    cwd: str


def place(templates: str | None, spec: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return the socket of a suitable template, or an empty path if there cannot be one.

    Parameters
    ----------
    templates
        The folder of templates, if any.
    spec
        The modules to import (``preload``), and the folders to import from first (``sys_path``).
    env
        The environment variables that the process would start with without a template.
    """
    if not templates or sys.platform != "linux":
        return ""
    from jupyter_sky.transport.templates.likeness import likeness

    try:
        return f"{templates}/{likeness(spec, env)}.template"
    except OSError:  # this system hides what a process is
        return ""


def place_for_agents(templates: str | None, env: Mapping[str, str]) -> str:
    """Return the socket of a template for agents; see `place`."""
    return place(templates, {"preload": [AGENT], "sys_path": []}, env)


def ask_for_agent(place: str, folder: str, env: Mapping[str, str], cwd: str) -> bytes | None:
    """Return what an agent says that was forked from a template; ``None`` if there is no template.

    It is a line of JSON once the agent listens, and empty if the agent does not start.
    """
    order: Order = {"folder": folder, "path": [], "env": env, "cwd": cwd}
    read, write = os.pipe()
    with open(read, "rb") as pipe:  # noqa: PTH123
        is_there = ask(place, [write], order)
        os.close(write)
        return pipe.read() if is_there else None


def ask(place: str, descriptors: Sequence[int], order: Order) -> int:
    """Ask the template at a place to fork; return the process id, or 0 if there is no template.

    Parameters
    ----------
    place
        The result of `place`.
    descriptors
        File descriptors for the fork: the one that it answers on, and that of its log, if any.
    order
        What the fork becomes.
    """
    if not place:
        return 0
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_ANSWERS_WITHIN)
        try:
            sock.connect(place)
            socket.send_fds(sock, [b" "], descriptors)
            sock.sendall(json.dumps(order).encode())
            sock.shutdown(socket.SHUT_WR)
            return int(sock.recv(32) or 0)
        except OSError:
            return 0


def command(module: str, *words: str) -> list[str]:
    """Return the command line of a module, with room for a fork to show its own.

    The current folder is not on its path: a `types.py` there must not replace the library's.
    """
    return [sys.executable, "-P", "-m", module, *words, *[""] * ROOM]
