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
from jupyter_sky.notebook.kernel import typed_command
from jupyter_sky.notebook.output.inplace_lines import FinalLines, InPlaceLines
from jupyter_sky.transport.protocol.events import Output

_SHOWN = 16 * 1024
"""Characters of the end that are shown."""

_INTERVAL = 0.2
"""Seconds after which an end is shown again: each time, all of it is sent to the page."""

_INTERVAL_OF_MANY = 0.05
"""As above for each of many: a page takes no more from a hundred ranks than from a few."""


class FloodEnd:
    """The end of the output of one rank to one stream.

    Parameters
    ----------
    shell
        The shell of the notebook.
    label
        The beginning of each line.
    bars
        Lines that are being overwritten in a display, which becomes its own.
    clock
        The time, for tests.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        label: str = "",
        bars: InPlaceLines | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = shell.display_pub
        self._label = label
        self._id = bars.id if bars else DisplayHandle().display_id
        self._text = ""  # complete lines
        self._last = FinalLines(bars.block if bars else None)  # the last line, or bars
        self._rank = 0
        self._lines = 0
        self._bytes = 0
        self._is_shown, self._is_new = bars is not None, False
        self._clock = clock
        self._next = 0.0

    def add(self, event: Output, text: str) -> None:
        """Add output, and what was skipped before it."""
        self._rank = event.rank
        self._is_new = True
        if event.skipped_bytes:
            self._leave_out(self._text + self._last.text)
            self._text, self._last = "", FinalLines()
            self._lines += event.skipped_lines
            self._bytes += event.skipped_bytes
        self._text += "".join(f"{line}\n" for line in self._last.draw(text))
        if len(self._text) > _SHOWN:
            start = self._text.find("\n", len(self._text) - _SHOWN, -1) + 1
            start = start or len(self._text) - _SHOWN
            self._leave_out(self._text[:start])
            self._text = self._text[start:]

    def show(self, waits: bool = True, among: int = 1) -> None:
        """Publish the end, if it has changed.

        Parameters
        ----------
        waits
            Whether to do so some moments later if it was just shown.
        among
            The number of ends that the cell has.
        """
        if not self._is_new or (waits and self._clock() < self._next):
            return
        interval = max(_INTERVAL, among * _INTERVAL_OF_MANY)
        self._is_new, self._next = False, self._clock() + interval
        ends = f"{self._text}{self._last.text[-_SHOWN:]}".rstrip("\n").split("\n")
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
