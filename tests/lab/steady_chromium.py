#!/usr/bin/env python3
"""Chromium that learns nothing of the machine's network: its arguments are those of this program.

Chromium gives up what it is connecting to whenever an address comes or goes on the machine
(``net::ERR_NETWORK_CHANGED``), also on loopback: a page of JupyterLab that loads just then waits
for ever. The hosts of this lab, which other tests start and stop meanwhile, have addresses. Without
netlink, which it hears of them by, Chromium takes the network for one that is always there. So
`socket` refuses that family here.

See ``net/base/address_tracker_linux.cc`` in Chromium, and ``seccomp(2)``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import socket
import struct
import sys

_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Numbers of an architecture, and of its `socket`."""

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCHITECTURE, _FAMILY = 0, 4, 16  # offsets in what a filter sees of a call
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def refuse_netlink() -> None:
    """Have this process, and what it becomes, open no socket to hear of the network by."""
    if platform.machine() not in _MACHINES:
        return
    architecture, call = _MACHINES[platform.machine()]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, 5, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 3, call),
        (_LOAD, 0, 0, _FAMILY),
        (_EQUAL, 0, 1, socket.AF_NETLINK),
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = _Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None)
    # Where it is not allowed, Chromium runs all the same, as it does everywhere else.
    if not libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)


def browser_path() -> str | None:
    """Where Chromium is; the one without windows takes half as much of the processor."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


if __name__ == "__main__":
    chromium = browser_path()
    assert chromium
    refuse_netlink()
    os.execv(chromium, [chromium, *sys.argv[1:]])
