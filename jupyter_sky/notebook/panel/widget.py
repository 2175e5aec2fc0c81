"""The panel of a cluster: a widget that keeps pages up to date about the present run.

ipywidgets is slow to import, so nothing imports this module before a panel is shown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

import anywidget
from traitlets import Dict, Int, List

from jupyter_sky.cluster.snapshot import RankView, Snapshot
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.throttle import Throttle

INTERVAL = 0.1
"""Seconds between two updates: they cost the same however much the ranks print."""

RANKS_A_SECOND = 128
"""Ranks that updates have in a second: with more ranks there are fewer updates."""

LINES = 200
"""Lines of output that are shown; the rank's log has those above them."""

LONGEST = 2000
"""Characters of a line that are shown."""

_LINE = 160  # most characters of the line beside a rank; there is no room for more
_USE = ("utilisation", "memory", "line", "progress")  # fields of a rank that change all the time

_STATIC = Path(__file__).parents[1] / "static"

if not _STATIC.exists():
    raise SkyError("the panel is not built: run `make views` in the folder of jupyter_sky.")


class SelectMessage(TypedDict):
    """The user has selected the rank whose output is shown, or none."""

    kind: Literal["select"]
    run: str
    rank: int | None


class StopMessage(TypedDict):
    """The user has pressed Stop for a run, by its id."""

    kind: Literal["stop"]
    run: str


class WhereMessage(TypedDict):
    """The user asks where the ranks of a run are."""

    kind: Literal["where"]
    run: str


class OpenMessage(TypedDict):
    """The user has opened or closed a strip; later strips begin in the same state."""

    kind: Literal["open"]
    open: bool


class AskMessage(TypedDict):
    """The page asks a question about a cluster, with an id for the answer."""

    kind: Literal["ask"]
    cluster: str
    number: str
    question: dict[str, Any]


PanelMessage = SelectMessage | StopMessage | WhereMessage | OpenMessage | AskMessage
"""What a page sends; ``Action`` of ``labextension/src/action.ts``."""


class PanelSource(Protocol):
    """What a panel shows."""

    def snapshot(self, rank: int | None) -> Snapshot:
        """Return the snapshot to show, with the output of ``rank``; called from any thread."""

    def stop(self) -> None:
        """Stop the current run."""

    def where(self) -> None:
        """Let the snapshot include soon where the ranks are."""

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a page's question about the cluster; called in a thread, since it may be slow.

        Raises
        ------
        SkyError
            If it cannot be answered.
        """

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, in any thread, whenever the snapshot has changed."""


class Panel(anywidget.AnyWidget):
    """The panel of one cluster.

    Each part of the snapshot is a trait: ipywidgets sends those that changed in one message, and a
    page that is opened later gets them all. Each rank has two parts: its usage and last line, which
    change all the time, and everything else. The output of the selected rank is sent as a whole
    from time to time, as ``output``; in between, only additions are sent, as ``more``.

    Parameters
    ----------
    source
        What it shows.
    timing
        Arguments of the `Throttle` that limits updates, for tests.
    """

    _esm = _STATIC / "panel.js"
    _css = _STATIC / "panel.css"

    cluster = Dict().tag(sync=True)
    run = Dict(allow_none=True).tag(sync=True)
    sent_bytes = Int().tag(sync=True)
    nodes: List[Any] = List().tag(sync=True)
    curves: List[Any] = List().tag(sync=True)
    size = Int(help="Number of ranks, of which each has `rank_0`, `use_0`…").tag(sync=True)
    output: Dict[str, Any] = Dict({"rank": None, "lines": []}).tag(sync=True)
    more = Dict(help="What to drop and keep of `output`, and what to add.").tag(sync=True)

    def __init__(self, source: PanelSource, **timing: Any) -> None:
        self._source = source
        self._selected: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._throttle = Throttle(self._refresh, INTERVAL, **timing)
        # Before the widget opens its comm, so that the first message to the page is complete.
        self._refresh()
        super().__init__()
        self.on_msg(lambda widget, content, buffers: self.handle_message(content))
        source.listen(self.update)

    def view(self) -> dict[str, Any]:
        """Return its bundle for a cell's output, by MIME type."""
        data, _ = super()._repr_mimebundle_() or ({}, {})
        return {name: value for name, value in data.items() if "widget-view" in name}

    def update(self) -> None:
        """Show the source's present state soon; return at once; callable from any thread."""
        self._throttle.request()

    def finish(self) -> None:
        """Show the source's present state at once, at the end of a run."""
        self._refresh()

    def _refresh(self) -> None:
        with self._lock:
            selected = self._selected
            run, rank = selected or (None, None)
            has_output = True
            try:
                snapshot = self._source.snapshot(rank)
            except SkyError:  # the node of that rank does not answer: the others go on
                snapshot, has_output = self._source.snapshot(None), False
            if snapshot["run"] is None or snapshot["run"]["id"] != run:
                rank = None
                if self._selected is selected:
                    self._selected = None
            self._throttle.interval = max(INTERVAL, len(snapshot["ranks"]) / RANKS_A_SECOND)
            with self.hold_sync():
                self._send_parts(snapshot)
                if rank is None:
                    self._send_output(None, shortened(""))
                elif has_output:
                    self._send_output(rank, shortened(snapshot["output"]["text"]))

    def _send_parts(self, snapshot: Snapshot) -> None:
        parts: dict[str, dict[str, Any]] = {}
        for at, rank in enumerate(snapshot["ranks"]):
            parts[f"rank_{at}"] = {name: part for name, part in rank.items() if name not in _USE}
            parts[f"use_{at}"] = _use(rank)
        new = {name: Dict().tag(sync=True) for name in parts if not self.has_trait(name)}
        if new:
            self.add_traits(**new)
        for name, part in parts.items():
            self.set_trait(name, part)
        self.set_trait("size", len(snapshot["ranks"]))
        self.set_trait("cluster", snapshot["cluster"])
        self.set_trait("run", snapshot["run"])
        self.set_trait("sent_bytes", snapshot["sent_bytes"])
        self.set_trait("nodes", snapshot["nodes"])
        self.set_trait("curves", snapshot["curves"])

    def _send_output(self, rank: int | None, lines: list[str]) -> None:
        before = self.output["lines"] if self.output["rank"] == rank else []
        drop, keep = overlap(before, lines)
        if keep == 0 or len(lines) - keep > LINES // 5:
            self.set_trait("output", {"rank": rank, "lines": lines})
            drop, keep = 0, len(lines)
        self.set_trait("more", {"drop": drop, "keep": keep, "added": lines[keep:]})

    def handle_message(self, content: object) -> None:
        """Handle a message of the user; anything that is not a `PanelMessage` is ignored.

        Callable from any thread.
        """
        message = _parsed(content)
        if message is None:
            return
        run = self.run["id"] if self.run else None
        if message["kind"] == "select" and message["run"] == run:
            rank = message["rank"]
            if rank is None or rank in self.run["ranks"]:
                self._selected = None if rank is None else (message["run"], rank)
                self.update()
        elif message["kind"] == "stop" and message["run"] == run:
            # A message that was delayed until its run had ended must not stop the next one.
            self._source.stop()
        elif message["kind"] == "where" and message["run"] == run:
            self._source.where()
        elif message["kind"] == "ask" and message["cluster"] == self.cluster["id"]:
            number, question = message["number"], message["question"]
            answering = partial(self._answer, number, question)
            threading.Thread(target=answering, daemon=True, name="sky-answer").start()

    def _answer(self, number: str, question: Mapping[str, Any]) -> None:
        said: dict[str, Any] = {"kind": "answer", "number": number}
        try:
            said["answer"] = self._source.answer(question)
        except SkyError as error:
            said["trouble"] = str(error)
        except Exception as error:  # the page waits for an answer, whatever it is
            said["trouble"] = f"{type(error).__name__}: {error}"
        self.send(said)


def _parsed(content: object) -> PanelMessage | None:
    match content:
        case {"kind": "select", "run": str(run), "rank": int() | None as rank}:
            return {"kind": "select", "run": run, "rank": rank}
        case {"kind": "stop", "run": str(run)}:
            return {"kind": "stop", "run": run}
        case {"kind": "where", "run": str(run)}:
            return {"kind": "where", "run": run}
        case {"kind": "ask", "cluster": str(of), "number": str(number), "question": dict(question)}:
            return {"kind": "ask", "cluster": of, "number": number, "question": question}
    return None


def _use(rank: RankView) -> dict[str, Any]:
    """Return a rank's usage and last line, rounded as shown, so that fewer values change."""
    utilisation, memory = rank["utilisation"], rank["memory"]
    return {
        "utilisation": None if utilisation is None else round(utilisation, 2),
        "memory": memory and [int(float(f"{memory[0]:.3g}")), memory[1]],
        "line": rank["line"][:_LINE],
        "progress": rank["progress"],
    }


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
