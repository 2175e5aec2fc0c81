"""The prompts at which ranks of a run wait for the user.

The background loop adds and removes them, the user's thread answers them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from jupyter_sky.formatting import format_list, format_ranks, keys_by_value
from jupyter_sky.transport.protocol.events import Prompted

_LONGEST = 200  # characters of a place
_MOST_NAMED = 8


class PromptObserver(Protocol):
    """Asks the user, and has to know when a prompt is withdrawn."""

    def on_removed(self, rank: int) -> None:
        """Handle that the prompt of a rank needs no answer: the rank has ended or continued.

        Called in the background loop, with the lock of the prompts held.
        """


class Prompts:
    """The open prompts of a run, at most one per rank.

    Parameters
    ----------
    changed
        Called when a prompt is added or removed.

    Attributes
    ----------
    lock
        Held while a prompt is added or removed.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.lock = threading.RLock()
        self._observers: list[PromptObserver] = []
        self._open: dict[int, Prompted] = {}
        self._closed = False

    @property
    def open(self) -> dict[int, Prompted]:
        """The prompts, by rank."""
        if not self._open:  # as mostly
            return {}
        with self.lock:
            return dict(sorted(self._open.items()))

    @property
    def sentence(self) -> str:
        """Describes which ranks wait for the user, and where; empty if none does."""
        places = {rank: (each.kind, each.place[:_LONGEST]) for rank, each in self.open.items()}
        groups = keys_by_value(places)
        parts = [_waiting(ranks, *key) for key, ranks in list(groups.items())[:_MOST_NAMED]]
        return f"{format_list(parts)}." if parts else ""

    def observe(self, observer: PromptObserver) -> None:
        """Notify an observer of removed prompts, until the end of the run, which may be past."""
        with self.lock:
            if not self._closed:
                self._observers.append(observer)

    def on_prompted(self, event: Prompted) -> None:
        """Handle that a rank waits for the user, or continues without an answer."""
        if event.kind == "over":
            asked = self.open.get(event.rank)
            if asked and asked.number == event.number:
                self.remove(event.rank)
            return
        with self.lock:
            self._open[event.rank] = event
        self._changed()

    def remove(self, rank: int) -> None:
        """Remove the prompt of a rank that has continued or ended."""
        if not self._open:  # called at the end of each rank
            return
        with self.lock:
            if self._open.pop(rank, None) is None:
                return
            for observer in self._observers:
                observer.on_removed(rank)
        self._changed()

    def take(self, rank: int) -> Prompted | None:
        """Remove a prompt to answer it; return ``None`` if it is gone."""
        with self.lock:
            taken = self._open.pop(rank, None)
        self._changed()
        return taken

    def close(self) -> None:
        """Take all prompts away, and tell nobody of later ones: the run is over.

        A run and its prompts would else keep each other, and the values that the ranks gave back,
        until cycles are collected.
        """
        for rank in self.open:
            self.remove(rank)
        with self.lock:
            self._closed = True
            self._observers.clear()
            self._changed = _nobody


def _nobody() -> None:
    """Tell nobody."""


def _waiting(ranks: list[int], kind: str, place: str) -> str:
    what = "at the prompt of the debugger" if kind == "debugger" else "waiting for your input"
    where = f" ({place})" if place else ""
    return f"{format_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} {what}{where}"
