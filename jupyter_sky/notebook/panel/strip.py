"""The strip above a cell's output: what the cell's run does, and later how it ended.

It is a display of its own, which is replaced at the end of the run. The record of the run is in it
three times: as JSON, which JupyterLab and Notebook 7 show with our extension; as HTML, for exported
notebooks and other pages; and as text. While a run goes on there is a widget in it too, for pages
that can show nothing of ours but widgets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from IPython.display import DisplayHandle

from jupyter_sky.cluster.snapshot import RunState, Snapshot
from jupyter_sky.notebook.panel.displays import flushing_what_waits
from jupyter_sky.notebook.panel.static_view import StaticView
from jupyter_sky.transport import event_loop

MIME = "application/vnd.jupyter-sky.run+json"
"""Type of the record as JSON; ``labextension/src/cells/`` shows it."""

_LIVE_AFTER = 0.3  # seconds; most runs are over by then, and need no widget

Bundle = dict[str, Any]


class Strip:
    """The strip of one run.

    Parameters
    ----------
    snapshot
        Returns what is to be shown; called from any thread.
    is_open
        Whether the ranks are shown below it from the beginning.
    widget
        Returns what shows the run as a widget, as a bundle of MIME types; empty where none can.
    handle
        A display that it takes the place of when it is shown first.
    """

    is_output = True

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        is_open: bool,
        widget: Callable[[], Mapping[str, Any]],
        handle: DisplayHandle | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._is_open = is_open
        self._widget = widget
        self._handle = handle or DisplayHandle()
        self._has_place = handle is not None
        self._lock = threading.Lock()
        self._is_shown = False
        self._is_over = False
        self._follows = False
        self._waits = False
        self._live: Mapping[str, Any] = {}

    def show(self) -> None:
        """Show it in the current cell, also where it was before and has been cleared."""
        with self._lock:
            self._is_shown, self._has_place = self._has_place, False
            self._publish()
            begins, self._follows = not self._follows, True
        if begins:
            self._follow_soon()

    def goes_on(self, snapshot: Callable[[], Snapshot]) -> None:
        """Show another run in its place, which follows the one that has ended."""
        with self._lock:
            self._snapshot, self._is_over = snapshot, False
            self._publish()
        self._follow_soon()

    def finish(self) -> None:
        """Show how the run has ended; it stays so."""
        # Programs that run notebooks, like papermill, ignore displays that come from threads.
        is_heard = threading.current_thread() is threading.main_thread()
        with self._lock:
            if not self._is_over or is_heard:
                self._is_over, self._live = True, {}
                self._publish()

    def _follow_soon(self) -> None:
        if not self._is_over:
            event_loop.call(event_loop.loop().call_later, _LIVE_AFTER, self._follow)

    def _follow(self) -> None:
        # In a thread of its own: a widget is slow to make, and the loop serves the links.
        if not self._is_over:
            event_loop.loop().run_in_executor(None, self._go_live)

    def _go_live(self) -> None:
        run = self._snapshot()["run"]
        if run is None or run["state"] is RunState.WAITING:
            with self._lock:
                if not self._is_over and not self._waits:
                    self._publish()
            self._follow_soon()
            return
        live = self._widget()
        with self._lock:
            if not self._is_over:
                self._live = live
                self._publish()

    def _publish(self) -> None:
        """Show what is known, in place of what was shown before; the lock is held."""
        snapshot = self._snapshot()
        run = snapshot["run"]
        self._waits = run is not None and run["state"] is RunState.WAITING
        bundle = {**self._live, **record_bundle(snapshot, self._is_open)}
        with flushing_what_waits():
            if self._is_shown:
                self._handle.update(bundle, raw=True)
            else:
                self._handle.display(bundle, raw=True)
        self._is_shown = True


def record_bundle(snapshot: Snapshot, is_open: bool) -> Bundle:
    """Return a snapshot as an output of a cell has it."""
    # What the shown rank prints is in the cell's output already.
    output = {"rank": snapshot["output"]["rank"], "text": ""}
    view = StaticView(snapshot)
    return {
        MIME: {"version": 1, "open": is_open, "snapshot": {**snapshot, "output": output}},
        "text/html": view.as_html(is_open),
        "text/plain": view.as_text(),
    }
