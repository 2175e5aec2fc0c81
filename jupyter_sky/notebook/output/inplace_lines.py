"""Lines that are drawn over and over: a bar, several at once, a table that rich keeps up to date.

A terminal moves its cursor for that. A notebook's stream knows no way up, and a notebook's file
keeps every state of a bar. So these lines are a display of their own, which is updated.
"""

from __future__ import annotations

import re
import time

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle

_EVERY = 0.05  # seconds between two updates
_MOST = 40  # lines; more are no bars
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor, as rich does while it draws

# To the beginning of the line, to the next, up and down, erasing a line.
_MOVES = re.compile(r"(\r(?!\n)|\r?\n|\x1b\[\d*[AB]|\x1b\[[02]?K|\x1b\[\?25[hl])")
_BEGIN = re.compile(r"\r(?!\n)|\x1b\[(\d*A|[02]?K|\?25l)")


def beginning(text: str) -> int | None:
    """Return where the first line begins that is drawn over, if one is."""
    found = _BEGIN.search(text)
    return text.rfind("\n", 0, found.start()) + 1 if found else None


class InPlaceLines:
    """A block of lines in a cell, over which a rank draws.

    Parameters
    ----------
    shell
        The shell of the notebook.
    line
        What the first line has so far.
    """

    def __init__(self, shell: InteractiveShell, line: str = "") -> None:
        self._publisher = shell.display_pub
        self._id = DisplayHandle().display_id
        self._rows = [line]
        self._row = 0
        self._anew = False
        self._fresh = False
        self._hidden = False
        self._shown: str | None = None
        self._next = 0.0
        self.over = False

    def draw(self, text: str) -> str:
        """Draw; return what comes behind the end of the block, and belongs to it no longer."""
        parts = _MOVES.split(text)
        for at, part in enumerate(parts):
            if self._is_behind(part):
                self.over = True
                self.show()
                return "".join(parts[at:])
            self._take(part)
        if time.monotonic() >= self._next:
            self.show()
        return ""

    def show(self) -> None:
        """Show it as it is."""
        text = "\n".join(row.rstrip() for row in self._rows).rstrip("\n")
        if text != self._shown:
            first, self._shown = self._shown is None, text
            transient = {"display_id": self._id}
            data = {"text/plain": text}
            self._publisher.publish(data, transient=transient, update=not first)
        self._next = time.monotonic() + _EVERY

    def _is_behind(self, part: str) -> bool:
        """Whether what comes next is an ordinary line below the block."""
        below = self._row == len(self._rows) - 1 and self._fresh and not self._hidden
        return len(self._rows) > _MOST or (below and bool(part) and not _MOVES.fullmatch(part))

    def _take(self, part: str) -> None:
        self._fresh = part in ("\n", "\r\n") or (self._fresh and part in ("", _HIDE, _SHOW))
        if part in ("\n", "\r\n"):
            self._go(self._row + 1)
        elif part == "\r":
            self._anew = True
        elif part in (_HIDE, _SHOW):
            self._hidden = part == _HIDE
        elif part.startswith("\x1b[") and part[-1] in "AB":
            count = int(part[2:-1] or 1)
            self._go(self._row + (count if part[-1] == "B" else -count))
        elif part.startswith("\x1b[") and part.endswith("K"):
            # Up to the end of the line: without columns, that is all or nothing of it.
            if self._anew or part == "\x1b[2K":
                self._rows[self._row] = ""
        elif part:
            self._rows[self._row] = part if self._anew else self._rows[self._row] + part
            self._anew = False

    def _go(self, row: int) -> None:
        self._row = max(0, row)
        self._rows += [""] * (self._row + 1 - len(self._rows))
        self._anew = True
