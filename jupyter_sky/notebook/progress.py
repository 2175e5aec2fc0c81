"""A line that says what is going on: one line that changes in a notebook, lines in a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle


class NoticeLine:
    """A line that is there as soon as there is something to say.

    Parameters
    ----------
    shell
        The shell of the notebook.
    title
        What it begins with.
    """

    def __init__(self, shell: InteractiveShell, title: str) -> None:
        self._shell = shell
        self._title = title
        self._line: ProgressLine | None = None

    def say(self, text: str) -> None:
        """Replace what the line says."""
        if self._line is None:
            self._line = ProgressLine(self._shell, self._title)
        self._line.say(text)


class ProgressLine:
    """Says what is going on while a cluster comes up; a context manager around that.

    Parameters
    ----------
    shell
        The shell of the notebook.
    title
        What every line begins with.
    """

    def __init__(self, shell: InteractiveShell, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._handle = DisplayHandle() if hasattr(shell, "kernel") else None
        self._shown = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.say("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Replace what the line says."""
        line = f"{self._title}: {text}"
        if self._handle is None:
            print(line, flush=True)
            return
        bundle = {"text/plain": line}
        if self._shown:
            self._handle.update(bundle, raw=True)
        else:
            self._handle.display(bundle, raw=True)
            self._shown = True
