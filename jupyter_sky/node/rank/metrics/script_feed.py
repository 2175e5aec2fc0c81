"""Receives the metrics of a script's processes, for the curves of its run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.transport.metrics.metric_log import LONGEST
from jupyter_sky.transport.metrics.script_metrics import parse

Take = Callable[[dict[str, float], float | None, int | None], object]
"""Takes figures, their step, and the rank of their process, if torchrun has given it one."""

_PIECE = 64 * 1024
_END = b"\n.\n"  # neither metrics nor anything else that `sky.log` writes


class ScriptFeed:
    """A named pipe for the metrics of a script.

    Parameters
    ----------
    path
        The path at which to make it.
    take
        Receives the metrics, in a thread.

    Attributes
    ----------
    path
        The path of the pipe.
    """

    def __init__(self, path: Path, take: Take) -> None:
        self.path = path
        self._take = take
        self._pipe = -1
        self._reader = threading.Thread(target=self._read, name="sky-script-metrics", daemon=True)

    def begin(self) -> None:
        """Make the pipe, and start to read."""
        os.mkfifo(self.path, 0o600)
        # Also open for writing: without any writer, a reader would get an end of file.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._reader.start()

    def end(self) -> None:
        """Read what is left in the pipe, and remove it."""
        if self._pipe >= 0:
            os.write(self._pipe, _END)
            self._reader.join()
            os.close(self._pipe)
        self.path.unlink(missing_ok=True)

    def _read(self) -> None:
        rest = b""
        while (end := rest.find(_END)) < 0:
            rest += os.read(self._pipe, _PIECE)
            whole, newline, last = rest.rpartition(b"\n")
            if _END in rest:
                continue
            self._hand_on(whole)
            # None of our own writers writes so long a line.
            rest = newline + last if len(last) < _PIECE else b""
        self._hand_on(rest[:end])

    def _hand_on(self, lines: bytes) -> None:
        for rank, step, name, value in parse(lines):
            self._take({name[:LONGEST]: value}, step, rank)
