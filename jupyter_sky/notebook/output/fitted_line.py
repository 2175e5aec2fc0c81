"""Keeps a line that overwrites itself as short as the terminal is wide: a longer one wraps."""

from __future__ import annotations

import re
import shutil
from typing import TextIO

from jupyter_sky.formatting import is_terminal, not_overwritten

_WITH_ENDS = re.compile(r"[^\n]*\n|[^\n]+")


class FittedLine:
    """Passes the text of a stream on, and shortens the states of bars that are too long.

    A terminal goes back to the beginning of its last row only, so that each state of a longer line
    stays in the rows above. When a line ends, all of it is shown.

    Parameters
    ----------
    stream
        What it is written to; nothing is changed unless this is a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""  # from its first carriage return on
        self._is_cut = False

    def fit(self, text: str) -> str:
        """Return what to write for the next part of the text."""
        if not is_terminal(self._stream):
            return text
        columns = shutil.get_terminal_size().columns
        return "".join(self._fit(part, columns - 1) for part in _WITH_ENDS.findall(text))

    def end(self) -> str:
        """Return what to write where no more text comes."""
        return f"\r{not_overwritten(self._line)}" if self._is_cut else ""

    def _fit(self, text: str, longest: int) -> str:
        if not self._line and "\r" not in text.rstrip("\r\n"):
            return text
        self._line += text.rstrip("\n")
        state = not_overwritten(self._line)
        if "\x1b" in self._line or len(state) <= longest:
            shown = text
            self._is_cut = False
        else:
            shown = f"\r{state[:longest]}"
            self._is_cut = True
        self._line = f"\r{state}"
        if text.endswith("\n"):
            shown = f"{self.end()}\n" if self._is_cut else shown
            self._line, self._is_cut = "", False
        return shown
