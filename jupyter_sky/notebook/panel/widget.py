"""The panel of a cluster in the notebook: a widget that is updated while a cell runs.

ipywidgets is slow to import, so nothing imports this module before a panel is shown.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

import anywidget
from IPython.display import DisplayHandle
from traitlets import Dict, Int, List, Unicode

from jupyter_sky.cluster.snapshot import Snapshot
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.panel.static_view import as_html, as_text
from jupyter_sky.notebook.throttle import Throttle

INTERVAL = 0.1
"""Seconds between two updates: they cost the same however much the ranks print."""

LINES = 200
"""Lines of output that are shown; the rank's log has those above them."""

LONGEST = 2000
"""Characters of a line that are shown."""

_STATIC = Path(__file__).parents[1] / "static"

if not _STATIC.exists():
    raise SkyError("the panel is not built here: run `make views` in the folder of jupyter_sky.")


class SelectMessage(TypedDict):
    """The user has selected the rank whose output is shown."""

    kind: Literal["select"]
    rank: int


class StopMessage(TypedDict):
    """The user has pressed Stop for a run, by its id."""

    kind: Literal["stop"]
    run: str


PanelMessage = SelectMessage | StopMessage
"""What a page sends; ``Action`` of ``labextension/src/snapshot.ts``."""


class PanelSource(Protocol):
    """What a panel shows."""

    def snapshot(self, rank: int) -> Snapshot:
        """Return what is to be shown, with the output of ``rank``; called from any thread."""

    def stop(self) -> None:
        """Stop the current run."""

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever the snapshot has changed, from any thread."""


class Panel(anywidget.AnyWidget):
    """The panel of one cluster.

    Each part of the snapshot is a trait: ipywidgets sends those that changed in one message, and a
    page that is opened later gets them all. Each rank is a part. The output is sent whole as
    ``output`` now and then, and in between only what was added, as ``more``.

    Parameters
    ----------
    source
        What it shows.
    timing
        Arguments of the `Throttle` that limits updates, for tests.
    """

    worth_saving = 0.5
    """Seconds that a run has to take for its end to be saved in the notebook's file."""

    _esm = _STATIC / "panel.js"
    _css = _STATIC / "panel.css"

    key = Unicode(help="By which a page finds the static view of this panel.").tag(sync=True)
    cluster = Dict().tag(sync=True)
    run = Dict(allow_none=True).tag(sync=True)
    sent_bytes = Int().tag(sync=True)
    nodes: List[Any] = List().tag(sync=True)
    size = Int(help="Number of ranks, of which each has a trait `rank_0`, `rank_1`…").tag(sync=True)
    output: Dict[str, Any] = Dict({"rank": 0, "lines": []}).tag(sync=True)
    more = Dict(help="What to drop and keep of `output`, and what to add.").tag(sync=True)

    def __init__(self, source: PanelSource, **timing: Any) -> None:
        self._source = source
        self._selected = 0
        self._lock = threading.Lock()
        self._throttle = Throttle(self._refresh, INTERVAL, **timing)
        self._handle: DisplayHandle | None = None
        self._saved: str | None = None
        # Before the widget opens its comm, so that the first message to the page has everything.
        self._refresh()
        super().__init__(key=uuid.uuid4().hex)
        self.on_msg(lambda widget, content, buffers: self.handle_message(content))
        source.listen(self.update)

    def show(self) -> None:
        """Show the panel in the current cell; where it was before, a static view stays."""
        self.settle()
        self._handle = DisplayHandle()
        self._handle.display(self)

    def update(self) -> None:
        """Show soon what the source has now; returns at once, and may be called from any thread."""
        self._throttle.request()

    def finish(self) -> None:
        """Show at once what the source has now, at the end of a run."""
        self._refresh()

    def settle(self) -> None:
        """Replace the panel by a static view, because it is shown elsewhere or ends."""
        if self._handle is not None:
            self._handle.update(self._static_view(), raw=True)
            self._handle = None

    def _refresh(self) -> None:
        with self._lock:
            self._snapshot = self._source.snapshot(self._selected)
            with self.hold_sync():
                self._send_parts(self._snapshot)
            self._save(self._snapshot)

    def _save(self, snapshot: Snapshot) -> None:
        """Save a static view of a run that has ended in the notebook, once.

        It can be seen without a kernel; in Jupyter's own pages the panel takes its place for as
        long as the kernel exists. A run may end after its cell, as one in the background does.
        """
        run = snapshot["run"]
        if self._handle is None or run is None or run["state"] == "running":
            return
        if run["id"] != self._saved and run["seconds"] > self.worth_saving:
            self._saved = run["id"]
            self._handle.update(self._static_view(self.key), raw=True)

    def _send_parts(self, snapshot: Snapshot) -> None:
        ranks = {f"rank_{at}": rank for at, rank in enumerate(snapshot["ranks"])}
        self.add_traits(
            **{name: Dict().tag(sync=True) for name in ranks if not self.has_trait(name)}
        )
        for name, rank in ranks.items():
            self.set_trait(name, {**rank, "line": rank["line"][:LONGEST]})
        self.set_trait("size", len(ranks))
        self.set_trait("cluster", snapshot["cluster"])
        self.set_trait("run", snapshot["run"])
        self.set_trait("sent_bytes", snapshot["sent_bytes"])
        self.set_trait("nodes", snapshot["nodes"])
        self._send_output(snapshot["output"]["rank"], shortened(snapshot["output"]["text"]))

    def _send_output(self, rank: int, lines: list[str]) -> None:
        before = self.output["lines"] if self.output["rank"] == rank else []
        drop, keep = overlap(before, lines)
        if keep == 0 or len(lines) - keep > LINES // 5:
            self.set_trait("output", {"rank": rank, "lines": lines})
            drop, keep = 0, len(lines)
        self.set_trait("more", {"drop": drop, "keep": keep, "added": lines[keep:]})

    def handle_message(self, content: object) -> None:
        """Do what the user asks of the panel; anything that is no `PanelMessage` is ignored.

        Called from any thread.
        """
        message = _parsed(content)
        if message is None:
            return
        if message["kind"] == "select":
            if 0 <= message["rank"] < self.size:
                self._selected = message["rank"]
                self.update()
        elif self.run and self.run["id"] == message["run"]:
            # A message that waited until its run had ended must not stop the next one.
            self._source.stop()

    def _static_view(self, key: str | None = None) -> dict[str, str]:
        return {"text/plain": as_text(self._snapshot), "text/html": as_html(self._snapshot, key)}

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, **self._static_view()}, metadata


def _parsed(content: object) -> PanelMessage | None:
    match content:
        case {"kind": "select", "rank": int(rank)}:
            return {"kind": "select", "rank": rank}
        case {"kind": "stop", "run": str(run)}:
            return {"kind": "stop", "run": run}
    return None


def shortened(text: str) -> list[str]:
    """Return the last `LINES` lines of a text, each of at most `LONGEST` characters."""
    return [line[-LONGEST:] for line in text.split("\n")[-LINES:]]


def overlap(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """Return ``drop`` and ``keep`` such that ``after`` begins with ``before[drop:drop + keep]``."""
    for drop in range(len(before)):
        keep = 0
        for old, new in zip(before[drop:], after, strict=False):
            if old != new:
                break
            keep += 1
        # The last line may have been unfinished.
        if drop + keep >= len(before) - 1:
            return drop, keep
    return 0, 0
