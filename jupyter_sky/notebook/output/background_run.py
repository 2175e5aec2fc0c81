"""The handle of a run in the background: the cell ends at once, and the run continues."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from typing import Any

from IPython import get_ipython
from IPython.display import DisplayHandle

from jupyter_sky.cluster.errors import Interrupted, heard_interrupts, without_interrupts
from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import RunNotice
from jupyter_sky.formatting import format_count, format_list
from jupyter_sky.notebook.output.plain_output import PlainOutput
from jupyter_sky.notebook.panel.manager import RunStrip
from jupyter_sky.notebook.throttle import Throttle, call_in_loop
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.events import Display, Output
from jupyter_sky.transport.tasks import shielded

_SHOWN_LINES = 40
_UPDATE_DELAY = 0.25  # seconds for which new output is collected before it is shown
_SLICE = 0.5  # seconds

Bind = Callable[[RunHandle, dict[int, Any]], dict[str, Any]]
Again = Callable[[RunHandle], RunHandle | None]


_numbers = itertools.count()
_begun: weakref.WeakValueDictionary[int, BackgroundRun] = weakref.WeakValueDictionary()


def begun() -> list[BackgroundRun]:
    """Return the runs of this process, in order, that somebody still refers to."""
    return [run for _, run in sorted(_begun.items())]


class BackgroundRun:
    """A run that continues while the notebook does other things.

    Await it, or call its ``result()``; both raise the ranks' errors. If it was stopped, ``await``
    raises `sky.RunStopped`. Each display of it shows its state and the end of its output, live.

    Parameters
    ----------
    run
        The run; `begin` starts it.
    title
        What it is called.
    strip
        Shows its progress, above its output.
    bind
        Binds the requested values and returns them; called in the user's thread.
    timeout
        Seconds after which the run is stopped.
    again
        Returns the next attempt after the loss of a rank or a node, if any; called in a separate
        thread.
    then
        Return the runs that follow, each if all before it succeed; also called in that thread.

    Attributes
    ----------
    is_answered
        Whether somebody has received its result or error.
    """

    def __init__(
        self,
        run: RunHandle,
        title: str,
        strip: RunStrip,
        bind: Bind,
        timeout: float | None,
        again: Again | None = None,
        then: Iterable[Again] = (),
    ) -> None:
        self._run = run
        self._title = title
        self._strip = strip
        self._bind = bind
        self._again = again
        self._then = list(then)
        self._all_begun = threading.Event()
        self._trouble: BaseException | None = None
        self._is_cancelled = False
        self._timeout = timeout
        self._until: float | None = None
        self._future: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._future.set_running_or_notify_cancel()
        self._output = PlainOutput(run.task.show)
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._handles: list[DisplayHandle] = []
        self._has_strip = not strip.is_output  # what a terminal shows has no place in a cell
        # A page finds its output by this, once JupyterLab no longer knows it as this display.
        self._metadata = {"jupyter_sky": {"background": run.id}}
        self._throttle = Throttle(
            self._update, interval=0.0, delay=_UPDATE_DELAY, later=call_in_loop
        )
        self.is_answered = False
        _begun[next(_numbers)] = self
        if not self._then:
            self._all_begun.set()

    def begin(self, sending: Callable[[TransferProgress], object] = lambda progress: None) -> None:
        """Start the run; it may have ended, and been followed by another one, when this returns.

        Meanwhile, ``sending`` is told how much of its data has arrived.
        """
        self._run.listen(self._on_output, self._on_end, self._timeout, sending)

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._future.done()

    @property
    def cluster(self) -> str:
        """The name of the cluster that it runs on."""
        return self._run.cluster

    @property
    def title(self) -> str:
        """What it is called."""
        return self._title

    @property
    def output(self) -> str:
        """The end of the output of the shown ranks."""
        return self._output.text

    @property
    def metrics(self) -> Any:
        """The metrics so far, as a DataFrame; without pandas, as lists by name."""
        return self._run.metrics.frame()

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end, bind the values for ``--out`` and ``--gather``, and return them.

        Raises
        ------
        RemoteError
            If the run failed; it is also of the original type.
        KeyboardInterrupt
            If it was cancelled.
        TimeoutError
            If it has not ended after ``timeout`` seconds; it continues.
        """
        with heard_interrupts():
            event_loop.wait_for(self._future, timeout)
            self._future.result(0)
        return self._values()

    @property
    def has_next(self) -> bool:
        """Whether a part of it, which this process has to begin, has not begun yet."""
        return bool(self._then)

    def wait_until_begun(self, notice: Callable[[str], object]) -> None:
        """Wait until it is over, or all nodes have received its last part.

        From then on it continues without this process.

        Parameters
        ----------
        notice
            Called with what the user should know meanwhile.
        """
        with heard_interrupts():
            while not (self._all_begun.wait(_SLICE) and self._run.told.wait(_SLICE)):
                while not self._notices.empty():
                    notice(self._notices.get_nowait())

    def cancel(self) -> None:
        """Stop the run; if it waits for its turn it does not start, nor does another attempt."""
        self._is_cancelled = True
        self._run.stop()

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        # Cancelling a task that awaits it does not stop the run.
        yield from shielded(asyncio.wrap_future(self._future)).__await__()
        with without_interrupts():
            return self._values()

    def _values(self) -> dict[str, Any]:
        self.is_answered = True
        self._show_end()
        if self._trouble:
            raise self._trouble.with_traceback(None)
        return self._bind(self._run, self._run.values())

    def show_at(self, handle: DisplayHandle) -> None:
        """Show its strip, and the end of its output in place of a display."""
        self._show_strip()
        self._handles.append(handle)
        self._update()

    def __repr__(self) -> str:
        return f"<{self._title}: {self._state()}>"

    def _ipython_display_(self) -> None:
        if not hasattr(get_ipython(), "kernel"):
            # A terminal cannot replace its output: each update would be printed below.
            print("\n".join(self._lines()))
            return
        self._show_strip()
        handle = DisplayHandle()
        handle.display(self._bundle(), raw=True, metadata=self._metadata)
        self._handles.append(handle)

    def _show_strip(self) -> None:
        self._strip.show()
        self._has_strip = True
        if self.done:
            self._strip.finish()

    # In the background thread

    def _on_output(self, event: Output | Display | RunNotice) -> None:
        if isinstance(event, RunNotice):
            self._notices.put(event.text)
            self.say(event.text)
            return
        self._output.add(event)
        self._throttle.request()

    def _on_end(self) -> None:
        following = self._again if self._run.loss else None
        if self._then and not (self._run.failed or self._run.stopped):
            following = self._then.pop(0)
        if following is None or self._is_cancelled:
            self._finish()
            return
        # In a thread: it takes as long as new processes and nodes do, and the loop serves the
        # links.
        threading.Thread(
            target=self._go_on, args=[following], name="sky-following", daemon=True
        ).start()

    def _finish(self) -> None:
        self._again = None  # it keeps the values for a further attempt alive
        if shell := get_ipython():
            shell.events.register("post_execute", self._show_end_in_cell)
        self._future.set_result(None)
        self._all_begun.set()
        if turn := self._run.task.turn:
            event_loop.call(turn.end)
        self._show_end()

    # In a thread of its own

    def _go_on(self, next_after: Again) -> None:
        """Begin the next part, or another attempt after the loss of a rank or node."""
        if self._timeout is not None and self._until is None:  # for all parts together
            self._until = self._run.began + self._timeout
        ended, is_last = self._run, not self._then
        try:
            if following := next_after(ended):
                self._run = following
                left = self._until and max(0.0, self._until - time.monotonic())
                following.listen(self._on_output, self._on_end, left)
        except BaseException as trouble:
            self._run, self._trouble, following = ended, trouble, None
        if following is None:
            self._finish()
            return
        if is_last:
            self._all_begun.set()
        if self._is_cancelled:
            following.stop()

    def say(self, text: str) -> None:
        """Add a line to the output."""
        self._output.say(text)
        self._throttle.request()

    # In both

    def _show_end_in_cell(self) -> None:
        """Show the run's end from the main thread, at the end of the next cell.

        Programs that run notebooks, like papermill, ignore displays that come from other threads.
        """
        get_ipython().events.unregister("post_execute", self._show_end_in_cell)
        self._show_end()

    def _show_end(self) -> None:
        self._update()
        if self._has_strip:
            self._strip.finish()
        else:  # it would appear in whichever cell is running
            self._strip.keep()

    def _update(self) -> None:
        for handle in self._handles:
            handle.update(self._bundle(), raw=True, metadata=self._metadata)

    # What it shows

    def _state(self) -> str:
        seconds = self._run.seconds
        if not self.done:
            return f"running for {seconds:.0f} s" if self._run.sent else "waiting for its turn"
        if self._trouble:
            failed = "" if isinstance(self._trouble, Interrupted) else "failed: "
            return f"{failed}{str(self._trouble).rstrip('.')}"
        if self._run.trouble:
            return f"ended after {seconds:.1f} s: {str(self._run.trouble).rstrip('.')}"
        word = "done"
        if self._run.stopped:
            word = "stopped"
        elif self._run.failed:
            word = "failed"
        return f"{word} after {seconds:.1f} s"

    def _lines(self) -> list[str]:
        heading = [] if self._strip.is_output else [repr(self)]
        lines = self.output.splitlines()
        if (earlier := len(lines) - _SHOWN_LINES) > 0:
            said = format_count(earlier, "earlier line")
            heading.append(f"[{said}: print `output` of this run to see more]")
        return [*heading, *lines[-_SHOWN_LINES:], *self._unasked_values()]

    def _unasked_values(self) -> list[str]:
        """Return a line about the values that the notebook does not have yet, if there are any."""
        names = sorted({name for each in self._run.task.values.values() for name in each})
        if not names or self.is_answered or not self._has_succeeded:
            return []
        are, them = ("are", "them") if len(names) > 1 else ("is", "it")
        named = format_list(names)
        return [f"{named} {are} on the ranks: `result()` of this run brings {them} here"]

    @property
    def _has_succeeded(self) -> bool:
        return self.done and not (self._trouble or self._run.failed or self._run.stopped)

    def _bundle(self) -> dict[str, str]:
        return {"text/plain": "\n".join(self._lines())}
