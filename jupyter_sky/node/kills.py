"""What has killed processes of this node, as far as the system tells."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path


class Kills:
    """Explains signals that have ended processes; counts kills for lack of memory."""

    def __init__(self) -> None:
        self._oom_kills = _oom_kills(0)

    def explain(self, number: int) -> str:
        """Return what the signal of this number means, of a process that has just ended by it."""
        kills, self._oom_kills = self._oom_kills, _oom_kills(self._oom_kills)
        if number == signal.SIGKILL and self._oom_kills > kills:
            return "the system killed it because there was no memory left"
        try:
            return f"it was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"it was killed by signal {number}"


def _oom_kills(otherwise: int) -> int:
    """Return how many processes the system has killed for lack of memory, if known."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return otherwise
