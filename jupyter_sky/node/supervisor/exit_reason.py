"""How a rank ended, in words."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from jupyter_sky.node.supervisor.rank_process import RankProcess


class ExitReasons:
    """Says why processes of this node ended."""

    def __init__(self) -> None:
        self._oom_kills = _oom_kills()

    def reason(self, status: int) -> str:
        """Return what the exit status of a process means."""
        if status >= 0:
            return f"its process ended with status {status}"
        kills, self._oom_kills = self._oom_kills, _oom_kills()
        if -status == signal.SIGKILL and self._oom_kills > kills:
            return "the system killed it because there was no memory left"
        try:
            return f"it was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"it was killed by signal {-status}"


def last_words(process: RankProcess) -> str:
    """Return a run's last lines; of a crash, its beginning, which says where it was."""
    since = process.log.size - process.began
    lines = process.log.tail(60, limit=min(since, 16 * 1024)).decode(errors="replace").splitlines()
    crashes = [index for index, line in enumerate(lines) if line.startswith("Fatal Python error")]
    if not crashes:
        return "\n".join(lines[-5:])
    # Threads that only waited come first.
    what, *where = lines[crashes[-1] :]
    at = next((i for i, line in enumerate(where) if line.startswith("Current thread")), 0)
    return "\n".join([what, *where[at:][:5]])


def _oom_kills() -> int:
    """Return how many processes this system has killed so far for lack of memory."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
