"""Takes what the processes of a script log, and gives it to the curves of its run."""

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
_END = b"\n.\n"  # no figures, and nothing that `sky.log` writes


class ScriptFeed:
    """A named pipe for the figures of a script.

    Parameters
    ----------
    path
        Where it is made.
    take
        Takes the figures, in a thread.

    Attributes
    ----------
    path
        The same.
    """

    def __init__(self, path: Path, take: Take) -> None:
        self.path = path
        self._take = take
        self._pipe = -1
        self._reader = threading.Thread(target=self._read, name="sky-script-metrics", daemon=True)

    def begin(self) -> None:
        """Make the pipe, and take what comes."""
        os.mkfifo(self.path, 0o600)
        # To write as well: without a writer, a reader is told that this is the end.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._reader.start()

    def end(self) -> None:
        """Take what is left in the pipe, and remove it."""
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
            # Whoever writes so long a line is none of ours.
            rest = newline + last if len(last) < _PIECE else b""
        self._hand_on(rest[:end])

    def _hand_on(self, lines: bytes) -> None:
        for rank, step, name, value in parse(lines):
            self._take({name[:LONGEST]: value}, step, rank)
