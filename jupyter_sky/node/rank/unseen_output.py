"""What threads and tasks of a cell or call print when it has ended and nothing else runs.

It goes to the rank's log. The next one says so, or nobody would look for it there.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from jupyter_sky.formatting import format_count

_UNSEEN = "rank {rank} printed {lines} after its last {what} had ended: `{command}` shows {them}."


class _Unseen:
    """Counts the lines.

    Attributes
    ----------
    is_counting
        Whether no cell runs.
    lines
        The lines since the last one has ended.
    """

    def __init__(self) -> None:
        self.is_counting = self._tasks_run = False
        self.lines = 0

    def count(self, text: str) -> None:
        """Count lines, if the user's code prints them."""
        thread = threading.current_thread()
        is_main = thread is threading.main_thread()
        if self._tasks_run if is_main else not thread.name.startswith("sky-"):
            # A bar that is drawn once more has none.
            self.lines += text.count("\n")

    @contextlib.contextmanager
    def tasks(self) -> Iterator[None]:
        """Count what the main thread prints, while tasks of former cells go on in it."""
        self._tasks_run = True
        try:
            yield
        finally:
            self._tasks_run = False

    def tell(self, rank: int, is_cell: bool) -> None:
        """Begin a cell or calls: say in it what was not seen before."""
        self.is_counting = False
        lines, self.lines = self.lines, 0
        if lines:
            said, them = format_count(lines, "line"), "it" if lines == 1 else "them"
            what, command = ("cell", "%sky logs") if is_cell else ("call", "jupyter sky logs")
            text = _UNSEEN.format(
                rank=rank, lines=said, what=what, command=f"{command} {rank}", them=them
            )
            print(text, file=sys.stderr)


unseen = _Unseen()
