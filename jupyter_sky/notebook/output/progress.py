"""Progress while the user waits, for a start or an upload: text that changes in place, or lines."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.formatting import format_bytes
from jupyter_sky.providers.progress import Preparation

_AGAIN_AFTER = 1.0  # seconds; what takes long shows that it goes on


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

    It is a line, and while nodes are prepared a bar for each of them below it. In a notebook that
    is one output which changes, in a terminal the bars are drawn over; in a file there is a line
    whenever a node has got on.

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
        self._place = _Output() if hasattr(shell, "kernel") else _Terminal()
        self._lock = threading.Lock()
        self._said: str | Preparation = ""
        self._over = threading.Event()

    def __enter__(self) -> ProgressLine:
        threading.Thread(target=self._go_on, daemon=True, name="sky-progress").start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if error is None:
            return
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with self._lock:
            bars = [*self._said.bars()][1:] if isinstance(self._said, Preparation) else []
            self._place.show([f"{self._title}: {word}", *bars], f"{self._title}: {word}")

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._started

    def say(self, text: str | Preparation) -> None:
        """Replace what it says; from any thread."""
        with self._lock:
            self._said = text
            self._show()

    def _show(self) -> None:
        bars = self._said.bars() if isinstance(self._said, Preparation) else [self._said]
        first, *others = bars
        self._place.show([f"{self._title}: {first}", *others], f"{self._title}: {self._said}")

    def _go_on(self) -> None:
        """Show bars again while nothing new is said, with the seconds that they are at."""
        while not self._over.wait(_AGAIN_AFTER):
            with self._lock:
                if isinstance(self._said, Preparation) and not self._over.is_set():
                    self._show()


class _Output:
    """One output of a cell, which changes."""

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


class _Terminal:
    """Bars that are drawn over on a screen, and lines; in a file, each line that is new."""

    def __init__(self) -> None:
        self._drawn = 0
        self._line = ""

    def show(self, lines: list[str], line: str) -> None:
        if not sys.stdout.isatty():
            if line != self._line:
                print(line, flush=True)
            self._line = line
            return
        # Up to the first line of the bars, and erase all below. After a line of text there may be
        # something else that was printed.
        over = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        columns = shutil.get_terminal_size().columns
        print(over + "\n".join(each[: columns - 1] for each in lines), flush=True)
        self._drawn = len(lines) if len(lines) > 1 else 0


LARGE = 32_000_000
"""Bytes above which a person is told that something is on its way."""

_STEPS = 10


class SendingLine:
    """Says which names are sent, how large they are, and how far that is.

    Parameters
    ----------
    shell
        The shell of the notebook.
    cluster
        The cluster.
    sizes
        What leaves for each name, in bytes.
    """

    def __init__(self, shell: InteractiveShell, cluster: Cluster, sizes: Mapping[str, int]) -> None:
        total = sum(sizes.values())
        self._cluster = cluster
        self._line = ProgressLine(shell, cluster.name) if total >= LARGE else None
        largest = sorted(sizes, key=lambda name: -sizes[name])
        # What is small beside the rest is not what takes the time.
        named = [name for name in largest if sizes[name] >= total / 20]
        self._what = ", ".join(f"{name} ({format_bytes(sizes[name])})" for name in named)
        self._step = -1

    def update(self, sent: int, total: int) -> None:
        """Say how many bytes have left of all; called as often as anything has."""
        step = _STEPS * sent // total if total else _STEPS
        if self._line is None or step == self._step:
            return
        self._step = step
        done = f"sent in {self._line.seconds:.1f} s" if sent >= total else f"{sent / total:.0%}"
        note = self._cluster.upload_note
        self._line.say(f"sending {self._what}: {done}{f' ({note})' if note else ''}")
