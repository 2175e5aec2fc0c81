"""Lines that a program keeps overwriting: tqdm's bars, rich's tables.

A terminal moves its cursor up for this. A notebook's stream cannot, and the notebook's file would
keep every state of a bar. So these lines become a display of their own, which is updated.
"""

from __future__ import annotations

import re
import time

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle

_INTERVAL = 0.05  # seconds between two updates
_LARGEST_BLOCK = 40  # lines; larger blocks are not bars
_LONGEST_ROW = 64 * 1024  # most characters of a line; its end is kept
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"  # rich hides the cursor while it draws

# Return to the beginning of the line, newline, up and down, erase a line, hide the cursor.
_MOVES = re.compile(r"(\r(?!\n)|\r?\n|\x1b\[\d{0,3}[AB]|\x1b\[[02]?K|\x1b\[\?25[hl])")
_BEGIN = re.compile(r"\r(?!\n)|\x1b\[(\d{0,3}A|[02]?K|\?25l)")


def overwriting_start(text: str) -> int | None:
    """Return where the first overwritten line begins; ``None`` if there is none."""
    found = _BEGIN.search(text)
    return text.rfind("\n", 0, found.start()) + 1 if found else None


class InPlaceLines:
    """A block of lines in a cell, with a cursor that a rank's output moves.

    Parameters
    ----------
    shell
        The shell of the notebook.
    line
        The present text of the first line.

    Attributes
    ----------
    id
        The id of its display.
    block
        The lines.
    """

    def __init__(self, shell: InteractiveShell, line: str = "") -> None:
        self._publisher = shell.display_pub
        self.id = DisplayHandle().display_id
        self.block = Block(line)
        self._shown: str | None = None
        self._next = 0.0

    @property
    def over(self) -> bool:
        """Whether an ordinary line has come below the block, which ends it."""
        return self.block.over

    @property
    def is_complete(self) -> bool:
        """Whether the cursor stands below the block, at the beginning of a line."""
        return self.block.is_complete

    def draw(self, text: str) -> str:
        """Apply text to the block; return the part of it that belongs below the block."""
        rest = self.block.draw(text)
        if self.over or time.monotonic() >= self._next:
            self.show()
        return rest

    def end(self) -> None:
        """Publish its final content: new output goes below."""
        self.block.over = True
        self.show()

    def show(self) -> None:
        """Publish the block, if it has changed."""
        text = self.block.text
        if text != self._shown:
            first, self._shown = self._shown is None, text
            transient = {"display_id": self.id}
            data = {"text/plain": text}
            self._publisher.publish(data, transient=transient, update=not first)
        self._next = time.monotonic() + _INTERVAL


class FinalLines:
    """The lines of a stream, each of them once nothing will overwrite it any more.

    Parameters
    ----------
    block
        The lines that may still change, if there are some already.
    """

    def __init__(self, block: Block | None = None) -> None:
        self._block = block

    @property
    def text(self) -> str:
        """The lines that may still change."""
        return self._block.text if self._block else ""

    @property
    def bar(self) -> str:
        """The last of them, if it is drawn in place; else empty."""
        return self.text.rpartition("\n")[2] if self._block and self._block.is_drawn else ""

    @property
    def is_empty(self) -> bool:
        """Whether all lines are final."""
        return self._block is None

    @property
    def is_complete(self) -> bool:
        """Whether the cursor stands below them, at the beginning of a line."""
        return self._block is not None and self._block.is_complete

    def draw(self, text: str) -> list[str]:
        """Apply text; return the lines that became final."""
        lines: list[str] = []
        while text:
            if self._block is None:
                start = overwriting_start(text)
                start = text.rfind("\n") + 1 if start is None else start
                lines += [line.rstrip("\r") for line in text[:start].split("\n")[:-1]]
                text = text[start:]
                if not text:
                    break
                self._block = Block()
            text = self._block.draw(text)
            lines += self._block.take_final()
            if text or self._block.is_ordinary:
                lines += self.end()
        return lines

    def end(self) -> list[str]:
        """Return the lines that were not final: new output goes below."""
        if self._block is None:
            return []
        self._block.over = True
        text, self._block = self.text, None
        return text.split("\n") if text else []


class Block:
    """A block of lines, with a cursor that text moves.

    Parameters
    ----------
    line
        The present text of the first line.

    Attributes
    ----------
    over
        Whether it has ended, as where an ordinary line has come below it.
    is_drawn
        Whether it has more than a line that was printed in pieces.
    """

    def __init__(self, line: str = "") -> None:
        self._rows = [line]
        self._row = 0
        self._overwrites = False  # the next text replaces the line
        self._at_line_start = False
        self._cursor_hidden = False
        self._reach = 0  # the most rows that the cursor has gone up at once
        self._final = 0  # the number of rows that nothing will overwrite
        self.over = False
        self.is_drawn = False

    @property
    def text(self) -> str:
        """Its present content; in the end, without what the next ordinary line overwrites."""
        rows = self._rows[:-1] if self.over and self.is_complete else self._rows
        return "\n".join(row.rstrip() for row in rows).rstrip("\n")

    def draw(self, text: str) -> str:
        """Apply text; return the part of it that belongs below the block."""
        parts = _MOVES.split(text)
        for at, part in enumerate(parts):
            if self._ends_with(part):
                self.over = True
                return "".join(parts[at:])
            self._apply(part)
        return ""

    @property
    def is_complete(self) -> bool:
        """Whether the cursor stands below the block, at the beginning of a line."""
        is_last = self._row == len(self._rows) - 1
        return is_last and self._at_line_start and not self._cursor_hidden

    @property
    def is_ordinary(self) -> bool:
        """Whether it is a complete line that nothing has overwritten."""
        return self.is_complete and not self.is_drawn

    def take_final(self) -> list[str]:
        """Remove the rows that nothing will overwrite any more, and return them."""
        rows, self._rows = self._rows[: self._final], self._rows[self._final :]
        self._row, self._final = self._row - len(rows), 0
        return [row.rstrip() for row in rows]

    def _ends_with(self, part: str) -> bool:
        """Return whether the next part is an ordinary line below the block."""
        if len(self._rows) > _LARGEST_BLOCK or (self.is_ordinary and part):
            return True
        return self.is_complete and bool(part) and not _MOVES.fullmatch(part)

    def _apply(self, part: str) -> None:
        is_newline = part in ("\n", "\r\n")
        self.is_drawn |= not is_newline and bool(_MOVES.fullmatch(part))
        self._at_line_start = is_newline or (self._at_line_start and part in ("", _HIDE, _SHOW))
        if is_newline:
            self._move_to(self._row + 1)
        elif part == "\r":
            self._overwrites = True
        elif part in (_HIDE, _SHOW):
            self._cursor_hidden = part == _HIDE
        elif part.startswith("\x1b[") and part[-1] in "AB":
            count = int(part[2:-1] or 1)
            if part[-1] == "A":
                self._reach = max(self._reach, min(count, self._row))
            self._move_to(self._row + (count if part[-1] == "B" else -count))
        elif part.startswith("\x1b[") and part.endswith("K"):
            # Erase the whole line or nothing, since columns are not tracked.
            if self._overwrites or part == "\x1b[2K":
                self._rows[self._row] = ""
        elif part:
            if self._overwrites and self._rows[self._row] and not self._cursor_hidden:
                # What is below others, and drawn again, has left them behind if it can reach them.
                self._final = max(self._final, self._row - self._reach)
            row = part if self._overwrites else self._rows[self._row] + part
            self._rows[self._row] = row[-_LONGEST_ROW:]
            self._overwrites = False

    def _move_to(self, row: int) -> None:
        self._row = max(0, row)
        self._rows += [""] * (self._row + 1 - len(self._rows))
        self._overwrites = True
