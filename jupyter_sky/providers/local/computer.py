"""Which computer this is: by its name, and by what stays the same where that changes.

A laptop can get another name in each network, and an administrator can give it one at any time.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path


def boot_id() -> str:
    """Return what no other computer has, and this one only until it is started again.

    Raises
    ------
    OSError
        On systems other than Linux.
    """
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boot() -> str | None:
    """Return what no other computer has, nor another container on this one; only on Linux.

    It changes with each start of the computer, after which none of its processes is left.
    """
    with contextlib.suppress(OSError):
        return f"{boot_id()} {Path('/proc/self/ns/pid').readlink()}"
    return None


def is_this(name: str, booted: str | None) -> bool:
    """Return whether this is the computer that had a name, and of which `boot` returned that."""
    return name == socket.gethostname() or (booted is not None and booted == boot())
