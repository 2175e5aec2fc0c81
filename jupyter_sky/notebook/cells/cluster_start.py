"""A cluster's start in the background: its nodes may be in a queue for hours."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.description import describe
from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted, heard_interrupts
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.stopped import start_of
from jupyter_sky.errors import NameTaken, UsageError
from jupyter_sky.notebook.cluster_factory import ClusterPlace
from jupyter_sky.providers.base import Progress
from jupyter_sky.transport import event_loop

Started = tuple[ClusterPlace, Cluster]
"""Where a cluster has started, and the cluster."""

_LOOK_EVERY = 0.2
"""Seconds after which is looked whether another notebook has started a cluster."""


def wait_for_starter(name: str, say: Progress) -> None:
    """Wait until another notebook or program has started a cluster, or no longer tries to.

    Parameters
    ----------
    name
        The cluster.
    say
        Called with what is waited for, in words.

    Raises
    ------
    Interrupted
        If the user stops it.
    """
    row = registry.find(name)
    try:
        while row and not row.machines and row.is_starting:
            step = f" ({row.progress})" if row.progress else ""
            say(f"waiting for another notebook or program, which starts it{step}")
            event_loop.wait(asyncio.sleep(_LOOK_EVERY))
            row = registry.find(name)
    except KeyboardInterrupt:
        raise Interrupted(
            f"this cell no longer waits for {name}, which another notebook or program still "
            "starts; nothing was started here."
        ) from None


class ClusterStart:
    """The start of a cluster in a thread of its own.

    Parameters
    ----------
    name
        The cluster.
    start
        Starts it; called in the thread.
    take_up
        Adopts the started cluster for the notebook, or, if it is given none, the one that another
        notebook has started; called in the user's thread.

    Attributes
    ----------
    name
        The cluster.
    text
        The present step.
    future
        Is done when the start has succeeded or failed.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[Progress], Started],
        take_up: Callable[[Started | None], Cluster],
    ) -> None:
        self.name = name
        self.text = "starting"
        self.future: concurrent.futures.Future[Started | None] = concurrent.futures.Future()
        self._start = start
        self._take_up = take_up
        self._cluster: Cluster | None = None
        self._stop = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self._runs: dict[object, Callable[[], None]] = {}  # those that wait for it
        threading.Thread(target=self._run, daemon=True, name="sky-start").start()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` in another thread when `text` changes; its errors change nothing."""
        self._listeners.append(listener)

    @contextlib.contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Do the same within a block."""
        self.listen(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @property
    def is_over(self) -> bool:
        """Whether the notebook has the cluster, or can find it, or the start has failed."""
        return self._cluster is not None or (
            self.future.done()
            and (self.future.exception() is not None or self.future.result() is None)
        )

    def cluster(self, timeout: float | None = None) -> Cluster:
        """Wait for the end, in the user's thread, and return the cluster.

        Raises
        ------
        SkyError
            If it did not start, or was stopped.
        TimeoutError
            If the start takes longer than ``timeout`` seconds; it continues.
        """
        with heard_interrupts():
            event_loop.wait_for(self.future, timeout)
            started = self.future.result(0)
        if self._cluster is None:
            if started:
                _, self._cluster = started  # also if what follows fails: it is there
            self._cluster = self._take_up(started)
        return self._cluster

    def cluster_by_now(self) -> Cluster:
        """Return the cluster if it is there by now, in the user's thread.

        Raises
        ------
        UsageError
            If it is not.
        SkyError
            If it did not start, or was stopped.
        """
        if not self.future.done():
            raise UsageError(
                f"cluster {self.name} is not up yet ({self.text}): wait for it, or "
                f"`%sky down {self.name}` stops its start."
            )
        return self.cluster()

    def follow(self, shell: InteractiveShell) -> Cluster:
        """Wait for the end, as `cluster` does, and show the progress in the current cell.

        Raises
        ------
        SkyError
            If it did not start, or was stopped.
        """
        with (
            ProgressLine(shell, self.name) as progress,
            self.listening(lambda: progress.update(self.text)),
        ):
            progress.update(self.text)
            cluster = self.cluster()
            progress.update(f"{describe(cluster)}, ready")
        return cluster

    def join(self, run: object, listener: Callable[[], None]) -> None:
        """Go on until this run leaves, too; until then, `listen`."""
        self._runs[run] = listener

    def leave(self, run: object) -> bool:
        """Go on for the other runs, or stop with the last one; return whether there are others."""
        self._runs.pop(run, None)
        if not self._runs:
            self.cancel()
        return bool(self._runs)

    def cancel(self) -> None:
        """Stop it, and leave the queue; returns at once."""
        self._stop.set()

    def _run(self) -> None:
        try:
            with start_of(self.name), event_loop.interrupted_by(self._stop):
                self.future.set_result(self._start_or_wait())
        except BaseException as error:
            self.future.set_exception(error)

    def _start_or_wait(self) -> Started | None:
        """Start the cluster, or wait until another notebook has it up."""
        while True:
            try:
                return self._start(self._say)
            except NameTaken:
                wait_for_starter(self.name, self._say)
                if (row := registry.find(self.name)) and row.machines:
                    return None

    def _say(self, text: object) -> None:
        self.text = str(text)
        for listener in [*self._listeners, *self._runs.values()]:
            with contextlib.suppress(Exception):  # what a cell cannot show must not end the start
                listener()
