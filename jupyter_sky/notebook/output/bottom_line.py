"""The line at the bottom of a terminal, in which a bar of one of several ranks moves."""

from __future__ import annotations

import re
import shutil
import sys
import time

from jupyter_sky.formatting import is_terminal

_INTERVAL = 0.1  # seconds between two states of a bar
_ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # a line may be cut in the middle of one


class BottomLine:
    """A line that is overwritten, below all lines that stay; `erase` makes room for these."""

    def __init__(self) -> None:
        self._shown = ""
        self._next = 0.0

    def show(self, text: str) -> None:
        """Show a text in place of the last one; nothing where there is no text."""
        now = time.monotonic()
        if not text:
            self.erase()
        elif text != self._shown and now >= self._next and is_terminal(sys.stderr):
            columns = shutil.get_terminal_size().columns
            line = _ESCAPES.sub("", text)[: columns - 1]
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown, self._next = text, now + _INTERVAL

    def erase(self) -> None:
        """Erase the line: what is printed next takes its place."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._shown = ""
