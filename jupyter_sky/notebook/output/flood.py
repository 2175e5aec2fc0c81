"""The end of a flood: of output that is faster, or in the end more, than a notebook can show.

The cell keeps the beginning as it was, and below it a display with the end, which is updated. A
stream would keep every part of it, with a notice before each.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle

from jupyter_sky.api.display.rank_output import gap_notice
from jupyter_sky.formatting import not_overwritten
from jupyter_sky.notebook.kernel import typed_command
from jupyter_sky.transport.protocol.events import Output

_SHOWN = 16 * 1024
"""Characters of the end that are shown."""

_INTERVAL = 0.2
"""Seconds after which the end is shown again: each time, all of it is sent to the page."""


class FloodEnd:
    """The end of the output of one rank to one stream.

    Parameters
    ----------
    shell
        The shell of the notebook.
    label
        The beginning of each line.
    clock
        The time, for tests.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        label: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = shell.display_pub
        self._label = label
        self._id = DisplayHandle().display_id
        self._text = ""
        self._rank = 0
        self._lines = 0
        self._bytes = 0
        self._is_shown = self._is_new = False
        self._clock = clock
        self._next = 0.0

    def add(self, event: Output, text: str) -> None:
        """Add output, and what was skipped before it."""
        self._rank = event.rank
        self._is_new = True
        if event.skipped_bytes:
            self._leave_out(self._text)
            self._text = ""
            self._lines += event.skipped_lines
            self._bytes += event.skipped_bytes
        self._text += text
        if len(self._text) > _SHOWN:
            start = self._text.find("\n", len(self._text) - _SHOWN, -1) + 1
            start = start or len(self._text) - _SHOWN
            self._leave_out(self._text[:start])
            self._text = self._text[start:]

    def show(self, waits: bool = True) -> None:
        """Publish the end if it has changed; some moments later, if it was just shown and waits."""
        if not self._is_new or (waits and self._clock() < self._next):
            return
        self._is_new, self._next = False, self._clock() + _INTERVAL
        ends = (not_overwritten(line) for line in self._text.rstrip("\n").split("\n"))
        lines = [f"{self._label}{line}" for line in ends]
        text = "\n".join([self._notice(), *lines] if self._bytes else lines)
        transient = {"display_id": self._id}
        self._publisher.publish({"text/plain": text}, transient=transient, update=self._is_shown)
        self._is_shown = True

    def _leave_out(self, text: str) -> None:
        self._lines += text.count("\n")
        self._bytes += len(text.encode(errors="replace"))

    def _notice(self) -> str:
        return gap_notice(self._rank, self._lines, self._bytes, typed_command())
