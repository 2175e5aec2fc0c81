"""The end of a flood: of output that is printed faster than a notebook can show.

The cell keeps the beginning as it was, and below it a display with the end, which is updated. A
stream would keep every part of it, with a notice before each.
"""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle

from jupyter_sky.api.display.rank_output import gap_notice
from jupyter_sky.formatting import not_overwritten
from jupyter_sky.notebook.kernel import typed_command
from jupyter_sky.transport.protocol.events import Output

_SHOWN = 16 * 1024
"""Characters of the end that are shown."""


class FloodEnd:
    """The end of the output of one rank to one stream.

    Parameters
    ----------
    shell
        The shell of the notebook.
    label
        The beginning of each line.
    """

    def __init__(self, shell: InteractiveShell, label: str = "") -> None:
        self._publisher = shell.display_pub
        self._label = label
        self._id = DisplayHandle().display_id
        self._text = ""
        self._rank = 0
        self._lines = 0
        self._bytes = 0
        self._shown: str | None = None

    def add(self, event: Output, text: str) -> None:
        """Add output, and what was skipped before it."""
        self._rank = event.rank
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

    def show(self) -> None:
        """Publish the end, if it has changed."""
        ends = (not_overwritten(line) for line in self._text.rstrip("\n").split("\n"))
        text = "\n".join([self._notice(), *(f"{self._label}{line}" for line in ends)])
        if text != self._shown:
            is_new, self._shown = self._shown is None, text
            transient = {"display_id": self._id}
            self._publisher.publish({"text/plain": text}, transient=transient, update=not is_new)

    def _leave_out(self, text: str) -> None:
        self._lines += text.count("\n")
        self._bytes += len(text.encode(errors="replace"))

    def _notice(self) -> str:
        return gap_notice(self._rank, self._lines, self._bytes, typed_command())
