"""The handle of a run whose cluster is still starting, while the notebook stays usable."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from typing import Any

from IPython.display import DisplayHandle, display

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted, without_interrupts
from jupyter_sky.notebook.cells.cluster_start import ClusterStart
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.session import Session
from jupyter_sky.transport.tasks import shielded

Begin = Callable[[Cluster, DisplayHandle | None], BackgroundRun | None]


class QueuedRun:
    """A run in the background that begins when its cluster is there.

    Await it, or call its ``result()``, like a `BackgroundRun`, which it becomes. It begins in the
    user's thread, which owns the values to send: between two cells, or when somebody waits for it.

    Parameters
    ----------
    session
        Completes the cluster.
    start
        The start of its cluster.
    options
        What it asks of the cluster.
    title
        The title of the run.
    begin
        Begins the run, with its strip in place of a display; called in the user's thread.
    """

    def __init__(
        self, session: Session, start: ClusterStart, options: CellOptions, title: str, begin: Begin
    ) -> None:
        self._session = session
        self._start = start
        self._options = session.asked(options)
        self._title = f"{start.name} · {title}"
        self._begin: Begin | None = begin
        self._run: BackgroundRun | None = None
        self._trouble: BaseException | None = None
        self._is_cancelled = False
        self._places: tuple[DisplayHandle, DisplayHandle] | None = None
        self._lock = threading.Lock()
        self._wait_is_over: concurrent.futures.Future[None] = concurrent.futures.Future()
        loop = asyncio.get_running_loop()
        start.join(self, self._update)
        start.future.add_done_callback(lambda done: self._end_wait())
        start.future.add_done_callback(lambda done: _call_in(loop, self._begin_between_cells))

    @property
    def done(self) -> bool:
        """Whether the run has ended or will not begin."""
        return self._run.done if self._run else self._trouble is not None

    @property
    def cluster(self) -> str:
        """The name of the cluster that it runs on."""
        return self._start.name

    @property
    def output(self) -> str:
        """The end of the output of the shown ranks."""
        return self._run.output if self._run else ""

    @property
    def metrics(self) -> Any:
        """The metrics so far, as for a `BackgroundRun`; ``None`` before it begins."""
        return self._run.metrics if self._run else None

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end, bind the values for ``--out`` and ``--gather``, and return them.

        Raises
        ------
        SkyError
            If the cluster did not start, or is not what the run asks for.
        RemoteError
            If the run failed; it is also of the original type.
        KeyboardInterrupt
            If it was cancelled.
        TimeoutError
            If it has not ended after ``timeout`` seconds; it continues.
        """
        until = None if timeout is None else time.monotonic() + timeout
        run = self._begun(timeout)
        return run.result(until and max(0.0, until - time.monotonic()))

    def cancel(self) -> None:
        """Stop the run or leave the queue; a cluster that only it waits for does not start."""
        self._is_cancelled = True
        if self._run:
            self._run.cancel()
        elif self._start.leave(self):
            self._give_up(self._trouble or _stopped())

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        with without_interrupts():
            # Not for the cluster alone: others may wait for it where this one is cancelled.
            yield from shielded(asyncio.wrap_future(self._wait_is_over)).__await__()
            run = self._begun()
        return (yield from run.__await__())

    def __repr__(self) -> str:
        return repr(self._run) if self._run else f"<{self._title}: {self._state()}>"

    def _ipython_display_(self) -> None:
        if self._run:
            display(self._run)
            return
        self._places = DisplayHandle(), DisplayHandle()
        for place, text in zip(self._places, (repr(self), ""), strict=True):
            place.display({"text/plain": text}, raw=True)

    # In the user's thread

    def _begun(self, timeout: float | None = None) -> BackgroundRun:
        """Wait for the cluster, begin the run once, and return it."""
        if self._trouble:
            raise self._trouble.with_traceback(None)
        if self._run is None:
            try:
                cluster = self._start.cluster(timeout)
                if self._is_cancelled:
                    raise _stopped()
                self._session.additions.complete(cluster, [self._options])
                strip, lines = self._places or (None, None)
                assert self._begin is not None
                run = self._begin(cluster, strip)
                assert run is not None, "it was asked for in the background"
                with self._lock:
                    self._run = run
            except TimeoutError:
                raise
            except BaseException as error:
                if not self._start.future.done():
                    raise
                if type(error) is KeyboardInterrupt:  # which does not say what it has ended
                    self._give_up(stop := _stopped())
                    raise stop from None
                self._give_up(error)
                raise
            self._let_go()
            if strip and lines:
                strip.update({"text/plain": ""}, raw=True)
                run.show_at(lines)
        return self._run

    def _begin_between_cells(self) -> None:
        with contextlib.suppress(BaseException), _heard_stop():  # `result` raises it
            self._begun()
        if self._trouble:
            _clear_frames(self._trouble)

    # In any thread

    def _give_up(self, trouble: BaseException) -> None:
        self._trouble = trouble
        self._let_go()
        self._update()

    def _let_go(self) -> None:
        """Keep none of the notebook's values alive: the user may keep the handle."""
        self._begin = None
        self._start.leave(self)
        self._end_wait()

    def _end_wait(self) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # that it is over is known
            self._wait_is_over.set_result(None)

    def _update(self) -> None:
        with self._lock:
            if self._run is None and self._places:
                self._places[0].update({"text/plain": repr(self)}, raw=True)

    def _state(self) -> str:
        if self._trouble:
            said = str(self._trouble).rstrip(".")
            return said if isinstance(self._trouble, Interrupted) else f"failed: {said}"
        return self._start.text


def when_up(
    session: Session, options: CellOptions, title: str, begin: Callable[..., BackgroundRun | None]
) -> BackgroundRun | QueuedRun | None:
    """Begin a run on the cluster of the options: now, or once it has started.

    Parameters
    ----------
    title
        The title of the run.
    begin
        Called with the cluster, and a display for the run's strip to replace, if any.
    """
    if start := session.start_behind(options):
        return QueuedRun(session, start, options, title, begin)
    return begin(session.cluster(options), None)


@contextlib.contextmanager
def _heard_stop() -> Iterator[None]:
    """Let Stop interrupt what is done between two cells, where ipykernel ignores it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _clear_frames(error: BaseException) -> None:
    """Let go of what the functions that an error came from had, which nobody looks at."""
    each: BaseException | None = error
    while each:
        traceback.clear_frames(each.__traceback__)
        each = each.__context__


def _stopped() -> Interrupted:
    return Interrupted("the run was stopped before it began.")


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the notebook has ended
        loop.call_soon_threadsafe(function)
