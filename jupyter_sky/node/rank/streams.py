"""The standard streams of a rank: pipes to its agent."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys

_libc = ctypes.CDLL(None)


def redirect(out: int, err: int) -> None:
    """Make two descriptors the standard output and error of this process, and close its input."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def flush() -> None:
    """Write out what was printed: what Python holds back, and what the C library does."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _libc.fflush(None)


def _text_stream(fd: int) -> io.TextIOWrapper:
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
