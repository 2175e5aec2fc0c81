"""Asking a template for a fork of it, which becomes what is wanted."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

_ANSWERS_WITHIN = 5.0  # seconds for what takes milliseconds

ROOM = 256
"""Bytes of the command line in which a fork of the template can write its own folder."""

PLACE = "JUPYTER_SKY_TEMPLATE"
"""The variable that tells an agent where to leave a template."""


class Order(TypedDict):
    """What a fork of a template becomes.

    Attributes
    ----------
    folder
        Of the node that it works for.
    path
        What it imports from first.
    env
        Its variables.
    cwd
        Where it works; where the template does, if this is empty.
    """

    folder: str
    path: Sequence[str]
    env: Mapping[str, str]
    cwd: str


def place(templates: str | None, spec: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return where a template listens that would do; nothing where there can be none.

    Parameters
    ----------
    templates
        The folder of templates, if there are any.
    spec
        What is imported (``preload``), and from where first (``sys_path``).
    env
        The variables that the process starts with, if there is no template.
    """
    if not templates or sys.platform != "linux":
        return ""
    from jupyter_sky.transport.templates.likeness import likeness

    try:
        return f"{templates}/{likeness(spec, env)}.template"
    except OSError:  # a system that hides what a process is
        return ""


def ask(place: str, descriptors: Sequence[int], order: Order) -> int:
    """Return the process id of a fork of the template that listens at a place; 0 if there is none.

    Parameters
    ----------
    place
        Of `place`.
    descriptors
        What is left to the fork: the one that it answers at, and that of its log, if it has one.
    order
        What it becomes.
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
    """Return the command line of a module, with room for that of a fork.

    Without the current folder in its path: a `types.py` of the user's is not the library's.
    """
    return [sys.executable, "-P", "-m", module, *words, *[""] * ROOM]
