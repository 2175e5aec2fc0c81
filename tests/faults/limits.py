"""What a system can run out of, taken from one process at a time."""

from __future__ import annotations

import contextlib
import resource
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")


class NoControlGroups(Exception):
    """The system's control groups cannot be changed here."""


@contextlib.contextmanager
def descriptors(process: psutil.Process, most: int) -> Iterator[None]:
    """Let a process open nothing more when it has so many files open."""
    with _limit(process, resource.RLIMIT_NOFILE, most):
        yield


@contextlib.contextmanager
def full_disk(process: psutil.Process, size: int) -> Iterator[None]:
    """Let a process write no file that is larger than so many bytes: writes are cut short there."""
    with _limit(process, resource.RLIMIT_FSIZE, size):
        yield


@contextlib.contextmanager
def no_more_processes(process: psutil.Process) -> Iterator[None]:
    """Let a process fork no more."""
    with _group("pids", process, "pids.max", "1"):
        yield


@contextlib.contextmanager
def memory(process: psutil.Process, size: int) -> Iterator[None]:
    """Let the system kill a process that takes more than so many bytes from now on."""
    with _group("memory", process, "memory.limit_in_bytes", str(size)):
        yield


@contextlib.contextmanager
def _limit(process: psutil.Process, what: int, most: int) -> Iterator[None]:
    before = resource.prlimit(process.pid, what)
    resource.prlimit(process.pid, what, (most, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, what, before)


@contextlib.contextmanager
def _group(controller: str, process: psutil.Process, what: str, limit: str) -> Iterator[None]:
    group = _GROUPS / controller / f"sky-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError:
        raise NoControlGroups from None
    try:
        (group / "cgroup.procs").write_text(str(process.pid))
        (group / what).write_text(limit)
        yield
    finally:
        with contextlib.suppress(OSError):  # it has ended
            (_GROUPS / controller / "cgroup.procs").write_text(str(process.pid))
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a control group; a process that has ended leaves it a moment later."""
    until = time.monotonic() + 10
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return
