"""The strip above a cell's output: the state of its run, and later how it ended.

It is a separate display, which is replaced at the end of the run. It contains the record of the run
three times: as JSON, which our extension shows in JupyterLab and Notebook 7; as HTML, for exported
notebooks and other pages; and as text. During a run it also contains a widget, for pages without
our extension.
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
        Returns the snapshot to show; called from any thread.
    is_open
        Whether the ranks are initially shown below it.
    widget
        Returns a widget for the run, as a MIME bundle; empty if there can be no widget.
    handle
        A display for it to replace when it is first shown.
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
        self._last: Snapshot | None = None
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
        """Show it in the current cell, even again after the output was cleared."""
        with self._lock:
            self._is_shown, self._has_place = self._has_place, False
            self._publish()
            begins, self._follows = not self._follows, True
        if begins:
            self._follow_soon()

    def goes_on(self, snapshot: Callable[[], Snapshot]) -> None:
        """Show the run that follows the ended one in its place."""
        with self._lock:
            self._snapshot, self._last, self._is_over = snapshot, None, False
            if not self._is_shown:  # else it would appear in whichever cell is running
                return
            self._publish()
        self._follow_soon()

    def keep(self) -> None:
        """Keep the final state of the run, to be shown later."""
        with self._lock:
            self._latest()

    def finish(self) -> None:
        """Show the final state of the run."""
        # Programs that run notebooks, like papermill, ignore displays from other threads.
        is_heard = threading.current_thread() is threading.main_thread()
        with self._lock:
            if not self._is_over or is_heard:
                self._is_over, self._live = True, {}
                self._publish()

    def _follow_soon(self) -> None:
        if not self._is_over:
            event_loop.call(event_loop.loop().call_later, _LIVE_AFTER, self._follow)

    def _follow(self) -> None:
        # In a thread of its own: making a widget is slow, and the loop serves the links.
        if not self._is_over:
            event_loop.in_thread(self._go_live)

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
        """Replace the display by the present snapshot; called with the lock held."""
        snapshot = self._latest()
        run = snapshot["run"]
        self._waits = run is not None and run["state"] is RunState.WAITING
        bundle = {**self._live, **record_bundle(snapshot, self._is_open)}
        with flushing_what_waits():
            if self._is_shown:
                self._handle.update(bundle, raw=True)
            else:
                self._handle.display(bundle, raw=True)
        self._is_shown = True

    def _latest(self) -> Snapshot:
        """Return the present snapshot; called with the lock held."""
        snapshot = self._snapshot()
        if snapshot["run"] is None and self._last:  # a cluster forgets runs that ended long ago
            return {**self._last, "cluster": snapshot["cluster"]}
        self._last = snapshot
        return snapshot


def record_bundle(snapshot: Snapshot, is_open: bool) -> Bundle:
    """Return a snapshot as a cell's output."""
    view = StaticView(snapshot)
    return {
        MIME: {"version": 1, "open": is_open, "snapshot": _to_saved(snapshot)},
        "text/html": view.as_html(is_open),
        "text/plain": view.as_text(),
    }


def _to_saved(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot without what need not be saved with a notebook.

    Most fields of most ranks say nothing; ``labextension/src/cells/record.ts`` adds these again.
    The output of the shown rank is in the cell's output already.
    """
    ranks = [
        {
            field: value
            for field, value in rank.items()
            if value is not None and value is not False and value != ""
        }
        for rank in snapshot["ranks"]
    ]
    return {**snapshot, "ranks": ranks, "output": {**snapshot["output"], "text": ""}}
