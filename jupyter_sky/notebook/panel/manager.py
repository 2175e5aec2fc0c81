"""The strips and panels of a notebook: a strip for each run, a live panel for each cluster."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.snapshot import KeptOutput, Snapshot
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import is_terminal
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.panel.static_view import headline, is_going_on
from jupyter_sky.notebook.panel.strip import Strip

if TYPE_CHECKING:
    from jupyter_sky.notebook.panel.widget import Panel

_REMEMBERED = 64  # number of runs that a page can still ask to stop
_REMEMBERED_OUTPUTS = 16  # number of runs of which output is kept
_WORTH_A_LINE = 1.0  # least seconds of a run for which a terminal shows how it ended


Answering = Callable[[Cluster, Mapping[str, Any]], Mapping[str, Any]]
"""Answers what a page asks of a cluster."""


class RunStrip(Protocol):
    """Shows one run; a cell that cannot show a strip has a simpler implementation.

    Attributes
    ----------
    is_output
        Whether it is among the cell's outputs, and so is cleared with them.
    """

    is_output: bool

    def show(self) -> None:
        """Show it in the current cell."""

    def goes_on(self, snapshot: Callable[[], Snapshot]) -> None:
        """Show the run that follows the ended one in its place."""

    def keep(self) -> None:
        """Keep how the run has ended, to be shown later."""

    def finish(self) -> None:
        """Show how the run has ended."""


class PanelManager:
    """Makes strips, and the panels that keep them up to date.

    Parameters
    ----------
    shell
        The shell of the notebook.
    settings
        Decide whether strips are shown, whether they are open, and what ranks may display.
    """

    def __init__(self, shell: InteractiveShell, settings: Sky) -> None:
        self._settings = settings
        self._has_page = hasattr(shell, "kernel")
        self._panels: dict[str, Panel] = {}
        self._lock = threading.Lock()
        self._has_widgets = self._has_page
        self._known: set[str] = set()
        self._clusters: dict[str, Cluster] = {}
        self._outputs: dict[str, Callable[[], KeptOutput]] = {}  # of several ranks
        self._is_open = False
        self._answer: Answering = _no_answer

    @property
    def display(self) -> str:
        """What ranks may display in the page, where nothing else is asked for."""
        return str(self._settings.display)

    def answer_with(self, answer: Answering) -> None:
        """Set the function that answers questions of pages about a cluster."""
        self._answer = answer

    def prepare(self) -> None:
        """Begin to import ipywidgets in the background: it takes as long as starting a cluster."""
        if self._has_widgets and self._settings.panel != "none":
            threading.Thread(target=self._import, daemon=True).start()

    def strip(self, cluster: Cluster, run: str, handle: DisplayHandle | None = None) -> RunStrip:
        """Return the strip of a run, to be shown in the cell that began it.

        Parameters
        ----------
        cluster
            The cluster.
        run
            The id of the run.
        handle
            A display for it to replace.
        """
        snapshot = self._remember(cluster, run)
        if self._settings.panel == "none":
            return NoStrip()
        if not self._has_page:
            return _TerminalLine(snapshot)
        return Strip(snapshot, self._opens(cluster), partial(self._widget, cluster), handle)

    def go_on(self, strip: RunStrip, cluster: Cluster, run: str) -> None:
        """Show the run that follows a strip's own in the strip; callable from any thread."""
        strip.goes_on(self._remember(cluster, run))

    def _remember(self, cluster: Cluster, run: str) -> Callable[[], Snapshot]:
        """Let pages ask to stop a run, and return a function that gives its snapshots."""
        with self._lock:  # runs in the background go on in threads of their own
            self._clusters[run] = cluster
            if len(self._clusters) > _REMEMBERED:
                del self._clusters[next(iter(self._clusters))]
        return partial(cluster.snapshot, None, run)

    def keep_output(self, run: str, output: Callable[[], KeptOutput]) -> None:
        """Keep what several ranks print in a run, to show it again after a reload of the page.

        Parameters
        ----------
        run
            The id of the run.
        output
            Returns it, as far as it is kept; called in any thread.
        """
        with self._lock:
            self._outputs[run] = output
            if len(self._outputs) > _REMEMBERED_OUTPUTS:
                del self._outputs[next(iter(self._outputs))]

    def kept_output(self, run: str) -> KeptOutput:
        """Return what several ranks have printed in a run, as far as it is kept."""
        output = self._outputs.get(run)
        return output() if output else KeptOutput("", is_cut=True)

    def show(self, cluster: Cluster) -> bool:
        """Show the last run of a cluster in the current cell; return whether a page can show it."""
        if not self._has_page:
            return False
        run = cluster.snapshot()["run"]
        snapshot = partial(cluster.snapshot, None, run["id"] if run else None)
        Strip(snapshot, True, partial(self._widget, cluster)).show()
        return True

    def handle_request(self, request: Mapping[str, object]) -> None:
        """Handle a message from a page to a strip; callable from any thread.

        The message should be a `jupyter_sky.notebook.panel.widget.PanelMessage`, but may be
        anything.
        """
        match request:
            case {"kind": "open", "open": bool(is_open)}:
                self._is_open = is_open
            case {"kind": "stop", "run": str(run)} if cluster := self._clusters.get(run):
                cluster.interrupt_run(run)
            case {"kind": "where", "run": str(run)} if cluster := self._clusters.get(run):
                show_where(cluster)
            case _:
                for panel in list(self._panels.values()):
                    panel.handle_message(request)

    def settle(self, cluster: Cluster) -> None:
        """Show the final state of a cluster that has ended, and stop following it."""
        self._known.discard(cluster.id)
        with self._lock:
            self._clusters = {run: of for run, of in self._clusters.items() if of is not cluster}
        if panel := self._panels.pop(cluster.id, None):
            panel.finish()

    def _opens(self, cluster: Cluster) -> bool:
        """Return whether the next strip of a cluster is initially open."""
        is_first = cluster.id not in self._known
        self._known.add(cluster.id)
        if self._settings.panel == "auto":
            return is_first or self._is_open
        return str(self._settings.panel) == "open"

    def _widget(self, cluster: Cluster) -> Mapping[str, Any]:
        """Return a widget's bundle for a cluster's present run; empty if there can be no widget."""
        if not self._has_widgets or not self._import():
            return {}
        from jupyter_sky.notebook.panel.widget import Panel

        with self._lock:
            panel = self._panels.get(cluster.id)
            if panel is None:
                panel = self._panels[cluster.id] = Panel(_ClusterSource(cluster, self._answer))
        return panel.view()

    def _import(self) -> bool:
        try:
            importlib.import_module("jupyter_sky.notebook.panel.widget")
        except (ImportError, SkyError):
            # Without ipywidgets, or if the panel was not built, text is shown.
            self._has_widgets = False
        return self._has_widgets


def show_where(cluster: Cluster) -> None:
    """Show soon, in the strip of the present run, where the ranks are; return at once."""

    def look() -> None:
        with contextlib.suppress(SkyError):
            cluster.where()

    threading.Thread(target=look, daemon=True, name="sky-where").start()


def _no_answer(cluster: Cluster, question: Mapping[str, Any]) -> Mapping[str, Any]:
    raise SkyError(f"nobody answers questions about {cluster.name} here.")


class NoStrip:
    """Shows nothing, as the user wants."""

    is_output = False

    def show(self) -> None:
        """Show nothing."""

    def goes_on(self, snapshot: Callable[[], Snapshot]) -> None:
        """Show nothing."""

    keep = finish = show


class _TerminalLine(NoStrip):
    """The strip in a terminal: a line at the end of a run that took a while."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._is_over = False

    def goes_on(self, snapshot: Callable[[], Snapshot]) -> None:
        """Print how this one has ended instead."""
        self._snapshot, self._is_over = snapshot, False

    def finish(self) -> None:
        """Print how the run has ended, once: a terminal cannot replace what it has shown."""
        if self._is_over or not is_terminal(sys.stdout):
            return
        self._is_over = True
        snapshot = self._snapshot()
        run = snapshot["run"]
        if run and run["seconds"] >= _WORTH_A_LINE and not is_going_on(run):
            print(headline(snapshot))


class _ClusterSource:
    """A cluster as the source of its panel."""

    def __init__(self, cluster: Cluster, answer: Answering) -> None:
        self._cluster = cluster
        self._answer = answer

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._answer(self._cluster, question)

    def snapshot(self, rank: int | None) -> Snapshot:
        return self._cluster.snapshot(rank)

    def stop(self) -> None:
        self._cluster.interrupt()

    def where(self) -> None:
        show_where(self._cluster)

    def listen(self, listener: Callable[[], None]) -> None:
        self._cluster.listen(listener)
