"""The log of an agent, for diagnosing problems; its size is always limited."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

LIMIT = 1024 * 1024
"""Bytes of it; when it has more, its older half is dropped."""


class AgentLog(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes log records to standard error, which is the agent's log.

    The fork server, and libraries that write there themselves, append to the same file.

    Parameters
    ----------
    path
        The file.
    limit
        Bytes to keep.
    """

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._path = path
        self._limit = limit

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        super().emit(record)
        with contextlib.suppress(OSError):
            if self._path.stat().st_size > self._limit:
                self._drop_older_half()

    def _drop_older_half(self) -> None:
        # All writers have it open for appending, so that the next line goes to its new end.
        with self._path.open("r+b") as file:
            file.seek(-self._limit // 2, os.SEEK_END)
            kept = file.read().partition(b"\n")[2]
            file.truncate(0)
            file.seek(0)
            file.write(kept)
