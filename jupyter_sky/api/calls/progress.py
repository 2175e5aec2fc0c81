"""The progress of many calls, as a line in the notebook's cell or in the terminal."""

from __future__ import annotations

import shutil
import sys
import time

from jupyter_sky.formatting import format_duration, is_terminal

_AFTER = 1.0
"""Seconds after which it is shown: what is done by then needs no bar."""

_EVERY = 0.1
_FEWEST = 3
_WIDTH, _LEAST = 30, 5


class ProgressBar:
    """A line that shows how many calls are done.

    Parameters
    ----------
    total
        The number of calls.
    title
        The title of the line.
    began
        When they began, by the monotonic clock; now by default.
    """

    def __init__(self, total: int, title: str, began: float | None = None) -> None:
        self._total = total
        self._title = title
        self._done = 0
        self._began = time.monotonic() if began is None else began
        self._shown = self._began + _AFTER - _EVERY
        self._is_there = False
        self._is_wanted = total >= _FEWEST and _is_read()

    def advance(self, began: float | None = None) -> None:
        """Count a finished call; without the time before they ``began``, if they had to wait."""
        if began is not None:
            self._began = began
            if not self._is_there:
                self._shown = began + _AFTER - _EVERY
        self.set(self._done + 1)

    def set(self, done: int) -> None:
        """Set the number of finished calls."""
        self._done = done
        now = time.monotonic()
        if self._is_wanted and done and now > self._shown + _EVERY:
            self._shown = now
            left = (now - self._began) * (self._total - self._done) / self._done
            percent = f"{100 * self._done // self._total:3}%"
            count = f"{self._done}/{self._total}, {format_duration(left)} left"
            room = _columns() - len(self._title) - len(percent) - len(count) - 5
            width = max(_LEAST, min(_WIDTH, room))
            full = width * self._done // self._total
            bar = "█" * full + " " * (width - full)
            self._write(f"{self._title} {percent}|{bar}| {count}")

    def clear(self) -> None:
        """Remove the line, so that something else can be printed."""
        if self._is_there:
            self._write("")
            self._is_there = False

    def close(self) -> None:
        """Leave the final line."""
        if self._is_there:
            self._shown = 0.0
            if self._done == self._total:
                seconds = format_duration(time.monotonic() - self._began)
                self._write(f"{self._title}: done in {seconds}\n")
            else:
                self._write(f"{self._title}: {self._done} done\n")

    def _write(self, text: str) -> None:
        self._is_there = True
        if not text.endswith("\n"):
            text = text[-_columns() :]  # text that takes two lines of a terminal cannot be erased
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()


def _columns() -> int:
    """Return the width of the terminal in characters."""
    return shutil.get_terminal_size().columns - 1 if is_terminal(sys.stderr) else 1000


def _is_read() -> bool:
    """Return whether somebody can see the line: in a terminal or notebook, not in a log file."""
    return is_terminal(sys.stderr) or type(sys.stderr).__module__.startswith("ipykernel")
