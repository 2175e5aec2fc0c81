"""Whether a process of this computer that has written something is still there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from jupyter_sky.providers.local.computer import boot_id


def describe(pid: int | None = None) -> dict[str, Any]:
    """Return what identifies a process of this computer, by default this one."""
    pid = os.getpid() if pid is None else pid
    return {"computer": socket.gethostname(), "pid": pid, "mark": _mark(pid)}


def is_there(process: Mapping[str, Any], since: float) -> bool:
    """Return whether a process is on this computer, whatever it is called now, and still there.

    Parameters
    ----------
    process
        What `describe` returned.
    since
        When that was written, in seconds since the epoch: on systems without marks, whatever began
        later is another process with the same id.
    """
    mark = process.get("mark")
    if mark is None and process.get("computer") != socket.gethostname():
        return False
    begun = began(process["pid"])
    if begun is None:
        return False
    return begun < since if mark is None else _mark(process["pid"]) == mark


def began(pid: int) -> float | None:
    """Return when a process began, in seconds since the epoch; ``None`` if it has ended.

    One that has ended can stay in the system's table, as in a container whose first process waits
    for no others. And another one can have got its id since.
    """
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def _mark(pid: int) -> str | None:
    """Return what no other process has, and no change of the clock changes; only on Linux.

    When a process began is counted from the boot: as a time of day it changes whenever the clock is
    set, as when a virtual machine wakes up.
    """
    try:
        # The program's name, in parentheses, may have any characters.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return f"{boot_id()} {int(fields[19])}"
    except (OSError, ValueError, IndexError):
        return None
