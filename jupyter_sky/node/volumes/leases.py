"""File leases: Linux delays programs that open a file until the holder releases the lease.

So a file can be fetched at the moment when a program opens it, whatever language the program is
written in, without a kernel driver and without root.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import struct
import threading
from pathlib import Path

_F_SETSIG = 10  # Linux's number; Python has no name for it
_INFO = 128  # bytes of a signalfd_siginfo
_FD_AT = 20  # offset of the descriptor in it
_CLOEXEC = os.O_CLOEXEC
_BREAK_TIME = Path("/proc/sys/fs/lease-break-time")


def break_time() -> float:
    """Return the seconds after which Linux lets programs that open a file continue anyway."""
    try:
        return float(_BREAK_TIME.read_text())
    except (OSError, ValueError):
        return 45.0


def is_being_written(fd: int) -> bool:
    """Return whether somebody may have the file of a descriptor, which only reads, open to write.

    A map of its content counts as well.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:  # or its file system does not support leases, and nobody knows
        return True
    return False


class Leases:
    """The leases that this process holds.

    Create it in the main thread, before there are others: all of them have to block its signal.
    """

    def __init__(self) -> None:
        self._signal = int(signal.SIGRTMIN) + 1
        signals = {self._signal, int(signal.SIGIO)}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        mask = (ctypes.c_ulong * 16)()
        width = 8 * ctypes.sizeof(ctypes.c_ulong)
        for number in signals:
            mask[(number - 1) // width] |= 1 << ((number - 1) % width)
        self._inbox = ctypes.CDLL(None, use_errno=True).signalfd(-1, mask, _CLOEXEC)
        if self._inbox < 0:
            raise OSError(ctypes.get_errno(), "signalfd")
        self._held: set[int] = set()
        self._lock = threading.Lock()

    def take(self, fd: int) -> None:
        """Take the lease of an open file.

        Raises
        ------
        BlockingIOError
            If somebody has it open.
        OSError
            If its file system does not support leases.
        """
        # Without an owner, signals go to the thread that takes the lease, which may end before.
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, _F_SETSIG, self._signal)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with self._lock:
            self._held.add(fd)

    def release(self, fd: int) -> None:
        """Release a file, so that waiting programs can open it."""
        with self._lock:
            self._held.discard(fd)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def is_asked_for(self, fd: int) -> bool:
        """Return whether a program waits for a file whose lease is held."""
        with self._lock:
            return fd in self._held and fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def wait(self) -> list[int]:
        """Wait until files are opened, and return their descriptors."""
        select.select([self._inbox], [], [])
        data = os.read(self._inbox, 64 * _INFO)
        found: list[int] = []
        for start in range(0, len(data), _INFO):
            (number,) = struct.unpack_from("=I", data, start)
            if number == self._signal:
                found += struct.unpack_from("=i", data, start + _FD_AT)
            else:
                # More files were opened at once than the kernel queues signals for.
                found += self._asked_for()
        return found

    def _asked_for(self) -> list[int]:
        with self._lock:
            # None of them is closed meanwhile.
            return [fd for fd in self._held if fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK]
