"""The progress of Dask's tasks: in the cell that waits for them, in strip and sidebar."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from jupyter_sky.api.calls.progress import ProgressBar
from jupyter_sky.cluster.snapshot import ProgressView
from jupyter_sky.cluster.work import Work

_TITLE = "tasks on Dask"
_AFTER = 1.0  # seconds; tasks that are done by then need no bar
_EVERY = 0.2
_AHEAD = 100_000  # most calls to count ahead
_COUNTED_WITHIN = 0.5  # seconds, all in all: what is slow to make may be large as well


class DaskProgress:
    """Shows the progress of tasks.

    Parameters
    ----------
    work
        The cluster's work, where the progress is shown.
    stop
        Stops the tasks.
    """

    def __init__(self, work: Work, stop: Callable[[], None]) -> None:
        self._work = work
        self._stop = stop
        self._calls = 0  # calls of joblib, each of which has its own progress

    def on_tasks(self, event: tuple[float, dict[str, Any]]) -> None:
        """Show the scheduler's counts; called in Dask's own thread."""
        _, told = event
        if self._calls:
            return
        if told["done"] >= told["total"]:
            self.end()
            return
        if told["seconds"] >= _AFTER:
            view = _view(told["done"], told["total"], told["seconds"])
            self._work.show(_TITLE, view, self._stop)

    def end(self) -> None:
        """Show no tasks."""
        if not self._calls:
            self._work.end()

    def of_calls(self, done: Callable[[], int], calls: CountedCalls) -> Callable[[], None]:
        """Show the progress of the calls of a ``Parallel``; return a function that ends this.

        Called in the thread that waits for them, in whose cell the line appears.
        """
        over = threading.Event()
        watching = threading.Thread(
            target=self._watch, args=(done, calls, over), name="sky-dask", daemon=True
        )
        self._calls += 1
        watching.start()

        def end() -> None:
            over.set()
            watching.join()
            self._calls -= 1
            self.end()

        return end

    def _watch(self, done: Callable[[], int], calls: CountedCalls, over: threading.Event) -> None:
        began = time.monotonic()
        bar: ProgressBar | None = None
        while not over.wait(_EVERY):
            took = time.monotonic() - began
            if took < _AFTER:
                continue
            total = calls.total()
            if total is not None and bar is None:
                bar = ProgressBar(total, _TITLE, began)
            if bar is not None:
                bar.set(done())
            self._work.show(_TITLE, _view(done(), total, took), self._stop)
        if bar is not None:
            bar.set(done())
            bar.close()


class CountedCalls:
    """The calls of a ``Parallel``, counted ahead as far as that is cheap.

    joblib fetches calls as workers become free, so it does not know how many there are.

    Parameters
    ----------
    calls
        The iterable given to ``Parallel``.
    """

    def __init__(self, calls: Iterable[Any]) -> None:
        self._lock = threading.RLock()
        self._calls = iter(calls)
        self._ahead: list[Any] = []
        self._given = 0
        self._left = _COUNTED_WITHIN
        self._all: int | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            value = next(self._calls)
            self._given += 1
            return value

    def total(self) -> int | None:
        """Return how many there are; ``None`` if that is not known."""
        with self._lock:
            if self._all is None and self._left > 0:
                self._count()
            return self._all

    def _count(self) -> None:
        ahead: list[Any] = []
        began = time.monotonic()
        rest = self._calls
        try:
            while len(ahead) < _AHEAD and time.monotonic() - began < self._left:
                ahead.append(next(rest))
            self._left = 0.0
        except StopIteration:
            self._all = self._given + len(ahead)
        except BaseException as error:
            self._left = 0.0
            self._calls = chain(ahead, _raising(error))
            return
        self._calls = chain(ahead, rest)


def _raising(error: BaseException) -> Iterator[Any]:
    raise error
    yield


def _view(done: int, total: int | None, took: float) -> ProgressView:
    if total is None:
        return ProgressView(label="", part=0.0, count=f"{done:,}", left=None)
    left = took * (total - done) / done if done else None
    part = min(1.0, done / total) if total else 1.0
    return ProgressView(label="", part=part, count=f"{done:,}/{total:,}", left=left)
