"""The progress of a cluster's start, in a notebook, a terminal or a file."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from jupyter_sky.formatting import is_terminal
from jupyter_sky.providers.progress import Preparation

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_REDRAW_INTERVAL = 1.0  # seconds; a long step shows its elapsed time


class ProgressLine:
    """Shows the progress of a cluster's start; a context manager.

    It is a line and, while nodes are prepared, a bar for each of them below it. A notebook has one
    output for it, which is replaced. Elsewhere it is on standard error, so that a program's output
    has nothing but that: a terminal redraws the bars in place, and a file gets a line whenever a
    node makes progress. The list of installed packages stays visible below it.

    Parameters
    ----------
    shell
        The shell of the notebook; ``None`` in a script.
    title
        The beginning of every line.
    """

    def __init__(self, shell: InteractiveShell | None, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        in_notebook = hasattr(shell, "kernel")
        self._display = _NotebookDisplay() if in_notebook else _TerminalDisplay()
        self._lock = threading.Lock()
        self._progress: str | Preparation = ""
        self._begun = ""
        self._plans: tuple[str, ...] = ()
        self._ended = threading.Event()

    def __enter__(self) -> ProgressLine:
        threading.Thread(target=self._redraw, daemon=True, name="sky-progress").start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if error is None or not self._progress:  # what was refused has not begun, nor failed
            return
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with self._lock:
            progress = self._progress
            bars = [*progress.bars()][1:] if isinstance(progress, Preparation) else []
            end = f"{self._begun}: {word}"  # what was shown last may be the reason
            self._display.show([end, *bars], end)

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._started

    def update(self, progress: str | Preparation) -> None:
        """Replace what is shown, until the end; callable from any thread."""
        with self._lock:
            if self._ended.is_set():
                return
            self._progress = progress
            self._show()

    def _show(self) -> None:
        progress = self._progress
        if isinstance(progress, Preparation):
            for plan in progress.plans[len(self._plans) :]:
                self._display.note(f"{self._title}: {plan}")
            self._plans = progress.plans
        bars = progress.bars() if isinstance(progress, Preparation) else [progress]
        first, *others = bars
        self._begun = self._begun or f"{self._title}: {first}"
        self._display.show([f"{self._title}: {first}", *others], f"{self._title}: {progress}")

    def _redraw(self) -> None:
        """Redraw bars while there is no news, since they show the elapsed seconds of a step."""
        while not self._ended.wait(_REDRAW_INTERVAL):
            with self._lock:
                if isinstance(self._progress, Preparation) and not self._ended.is_set():
                    self._show()


class _NotebookDisplay:
    """An output of a cell that is replaced; it does not use the single line."""

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._shown: list[str] = []
        self._notes: list[str] = []

    def note(self, text: str) -> None:
        """Add a permanent line, after all others."""
        self._notes.append(text)

    def show(self, lines: list[str], line: str) -> None:
        lines = [*lines, *self._notes]
        if lines == self._shown:
            return
        bundle = {"text/plain": "\n".join(lines)}
        if self._shown:
            self._handle.update(bundle, raw=True)
        else:
            self._handle.display(bundle, raw=True)
        self._shown = lines


class _TerminalDisplay:
    """Bars that are redrawn on a screen; in a file, each new single line."""

    def __init__(self) -> None:
        self._drawn = 0
        self._line = ""

    def note(self, text: str) -> None:
        """Print a permanent line, above the bars."""
        over = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        print(over + text, file=sys.stderr, flush=True)
        self._drawn = 0

    def show(self, lines: list[str], line: str) -> None:
        is_new, self._line = line != self._line, line
        if not is_terminal(sys.stderr):
            if is_new:
                print(line, file=sys.stderr, flush=True)
            return
        if len(lines) == 1 and not is_new:
            return
        # Move up to the first line of the bars, and erase everything below. A single line stays,
        # however long, since something else may have been printed below it.
        over = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        if len(lines) > 1:
            columns = shutil.get_terminal_size().columns
            lines = [each[: columns - 1] for each in lines]
        print(over + "\n".join(lines), file=sys.stderr, flush=True)
        self._drawn = len(lines) if len(lines) > 1 else 0
