"""Progress while the user waits for a start or an upload: text that changes in place, or lines."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle

from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.formatting import format_bytes
from jupyter_sky.providers.progress import Preparation

_REDRAW_INTERVAL = 1.0  # seconds; a step that takes long shows that it goes on


class NoticeLine:
    """A line that appears with the first notice.

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

    def update(self, text: str | Preparation) -> None:
        """Replace the text of the line."""
        if self._line is None:
            self._line = ProgressLine(self._shell, self._title)
        self._line.update(text)


class ProgressLine:
    """Shows what is going on while a cluster starts; a context manager around that.

    It is a line, and while nodes are prepared a bar for each of them below it. A notebook has one
    output for it that is replaced, a terminal draws the bars again and again at one place, and a
    file gets a line whenever a node has got on.

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
        self._display = _NotebookDisplay() if hasattr(shell, "kernel") else _TerminalDisplay()
        self._lock = threading.Lock()
        self._progress: str | Preparation = ""
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
        if error is None:
            return
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with self._lock:
            progress = self._progress
            bars = [*progress.bars()][1:] if isinstance(progress, Preparation) else []
            self._display.show([f"{self._title}: {word}", *bars], f"{self._title}: {word}")

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._started

    def update(self, progress: str | Preparation) -> None:
        """Replace what is shown; from any thread."""
        with self._lock:
            self._progress = progress
            self._show()

    def _show(self) -> None:
        progress = self._progress
        bars = progress.bars() if isinstance(progress, Preparation) else [progress]
        first, *others = bars
        self._display.show([f"{self._title}: {first}", *others], f"{self._title}: {progress}")

    def _redraw(self) -> None:
        """Show bars again while there is no news: they have the seconds that a step has taken."""
        while not self._ended.wait(_REDRAW_INTERVAL):
            with self._lock:
                if isinstance(self._progress, Preparation) and not self._ended.is_set():
                    self._show()


class _NotebookDisplay:
    """One output of a cell, which is replaced; the single line is not used."""

    def __init__(self) -> None:
        self._handle = DisplayHandle()
        self._shown: list[str] = []

    def show(self, lines: list[str], line: str) -> None:
        if lines == self._shown:
            return
        bundle = {"text/plain": "\n".join(lines)}
        if self._shown:
            self._handle.update(bundle, raw=True)
        else:
            self._handle.display(bundle, raw=True)
        self._shown = lines


class _TerminalDisplay:
    """Bars that are drawn over on a screen; in a file, each single line that is new."""

    def __init__(self) -> None:
        self._drawn = 0
        self._line = ""

    def show(self, lines: list[str], line: str) -> None:
        is_new, self._line = line != self._line, line
        if not sys.stdout.isatty():
            if is_new:
                print(line, flush=True)
            return
        if len(lines) == 1 and not is_new:
            return
        # Up to the first line of the bars, and erase all below. A single line stays: something else
        # may have been printed below it.
        over = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        columns = shutil.get_terminal_size().columns
        print(over + "\n".join(each[: columns - 1] for each in lines), flush=True)
        self._drawn = len(lines) if len(lines) > 1 else 0


_LARGE = 32_000_000  # bytes from which on an upload is shown
_STEPS = 10
_MOST = 3  # hosts that are named


class SendingLine:
    """Shows which names are being sent, how large they are, and how much has arrived where.

    Parameters
    ----------
    shell
        The shell of the notebook.
    title
        What the line begins with.
    sizes
        The bytes that are sent for each name; if they are few in all, nothing is shown.
    """

    def __init__(self, shell: InteractiveShell, title: str, sizes: Mapping[str, int]) -> None:
        total = sum(sizes.values())
        self._line = ProgressLine(shell, title) if total >= _LARGE else None
        largest = sorted(sizes, key=lambda name: -sizes[name])
        # Names that are small beside the rest are not what takes the time.
        named = [name for name in largest if sizes[name] >= total / 20]
        self._names = ", ".join(f"{name} ({format_bytes(sizes[name])})" for name in named)
        self._done = ""
        self._show("0%")

    def update(self, progress: TransferProgress) -> None:
        """Show how far it has come; cheap enough to be called for each percent."""
        if self._line is None:
            return
        if progress.arrived >= progress.total:
            done = f"sent in {self._line.seconds:.1f} s"
        else:
            done = _shares(progress)
        if done != self._done:
            self._show(done, progress.note)

    def _show(self, done: str, note: str = "") -> None:
        self._done = done
        if self._line is not None:
            self._line.update(f"sending {self._names}: {done}{f' ({note})' if note else ''}")


def _shares(progress: TransferProgress) -> str:
    """Say how much has arrived: one number, or host by host where that differs."""
    steps = {name: int(_STEPS * share) for name, share in progress.shares.items()}
    if len(set(steps.values())) < 2:
        return f"{min(steps.values(), default=0) * 100 // _STEPS}%"
    slowest = sorted(steps, key=lambda name: steps[name])
    there = [name for name in slowest if steps[name] == _STEPS]
    late = [name for name in slowest if steps[name] < _STEPS]
    parts = [f"{steps[name] * 100 // _STEPS}% on {name}" for name in late[:_MOST]]
    if len(late) > _MOST:
        parts.append(f"more on {len(late) - _MOST} others")
    if there:
        parts.append(f"all of it on {', '.join(there) if len(there) <= _MOST else len(there)}")
    return ", ".join(parts)
