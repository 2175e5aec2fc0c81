"""The panel of a cluster in the notebook: a widget that is fed while a cell runs.

ipywidgets takes its time to import, so nothing imports this module before a panel is shown.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import anywidget
from IPython.display import DisplayHandle
from traitlets import Dict, Int, List, Unicode

from jupyter_sky.cluster.snapshot import Snapshot
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.panel.static_view import as_html, as_text
from jupyter_sky.notebook.panel.throttle import Throttle

INTERVAL = 0.1
"""Seconds between two updates, so that 64 ranks which print a lot stay cheap."""

LINES = 200
"""Lines of output that are shown; what is above them is in the rank's log."""

LONGEST = 2000
"""Characters of a line that are shown."""

_STATIC = Path(__file__).parents[1] / "static"

if not _STATIC.exists():
    raise SkyError("the panel is not built here: run `make views` in the folder of jupyter_sky.")


class Source(Protocol):
    """Where a panel has its data from."""

    def snapshot(self, rank: int) -> Snapshot:
        """Return what is to be shown, with the output of ``rank``; called from any thread."""

    def on_stop(self) -> None:
        """Stop the present run."""


class Panel(anywidget.AnyWidget):
    """The panel of one cluster.

    The snapshot travels in parts, each of them a trait: ipywidgets sends those that changed, in one
    message, and a page that is opened later gets them all. Each rank is a part, and of the output
    that grows, what was added since ``output`` was sent whole.

    Parameters
    ----------
    source
        Where its data comes from.
    timing
        Of the `Throttle` that keeps updates apart, for tests.
    """

    worth_saving = 0.5
    """Seconds of a run, above which the notebook's file gets its final state."""

    _esm = _STATIC / "panel.js"
    _css = _STATIC / "panel.css"

    key = Unicode(help="By which a page finds the picture of this panel.").tag(sync=True)
    cluster = Dict().tag(sync=True)
    run = Dict(allow_none=True).tag(sync=True)
    sent_bytes = Int().tag(sync=True)
    nodes: List[Any] = List().tag(sync=True)
    size = Int(help="Number of ranks, of which each has a trait `rank_0`, `rank_1`…").tag(sync=True)
    output: Dict[str, Any] = Dict({"rank": 0, "lines": []}).tag(sync=True)
    more = Dict(help="What to drop and keep of `output`, and what to add.").tag(sync=True)

    def __init__(self, source: Source, **timing: Any) -> None:
        self._source = source
        self._selected = 0
        self._lock = threading.Lock()
        self._throttle = Throttle(self._refresh, INTERVAL, **timing)
        self._handle: DisplayHandle | None = None
        self._saved: str | None = None
        # Before there is a link to the page, so that it gets everything in one message.
        self._refresh()
        super().__init__(key=uuid.uuid4().hex)
        self.on_msg(lambda widget, content, buffers: self.take(content))

    @property
    def selected(self) -> int:
        """The rank whose output is shown."""
        return self._selected

    def show(self) -> None:
        """Show the panel in the present cell; where it was before, a picture stays."""
        self.settle()
        self._handle = DisplayHandle()
        self._handle.display(self)

    def update(self) -> None:
        """Show soon what the source has now. Returns at once, from any thread, however often."""
        self._throttle.request()

    def finish(self) -> None:
        """Show what the source has now, at the end of a run."""
        self._refresh()

    def settle(self) -> None:
        """Leave a picture that stays as it is, because the panel goes on elsewhere or ends."""
        if self._handle is not None:
            self._handle.update(self._picture(), raw=True)
            self._handle = None

    def _refresh(self) -> None:
        with self._lock:
            self._snapshot = self._source.snapshot(self._selected)
            with self.hold_sync():
                self._send_parts(self._snapshot)
            self._save(self._snapshot)

    def _save(self, snapshot: Snapshot) -> None:
        """Leave the notebook a picture of a run that is over, once.

        It needs no kernel to be seen; in Jupyter's own pages the panel takes its place for as long
        as the kernel is there. A run may end after its cell, as one in the background does.
        """
        run = snapshot["run"]
        if self._handle is None or run is None or run["state"] == "running":
            return
        if run["id"] != self._saved and run["seconds"] > self.worth_saving:
            self._saved = run["id"]
            self._handle.update(self._picture(self.key), raw=True)

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

    def take(self, content: Any) -> None:
        """Do what the person wants of the panel; from any thread."""
        match content:
            case {"kind": "select", "rank": int(rank)} if 0 <= rank < self.size:
                self._selected = rank
                self.update()
            # A message that waited until its run was over must not stop the next one.
            case {"kind": "stop", "run": str(run)} if self.run and self.run["id"] == run:
                self._source.on_stop()

    def _picture(self, key: str | None = None) -> dict[str, str]:
        return {"text/plain": as_text(self._snapshot), "text/html": as_html(self._snapshot, key)}

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, **self._picture()}, metadata


def shortened(text: str) -> list[str]:
    """Return the last lines of a text, none of them very long."""
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
