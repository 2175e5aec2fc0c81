"""A static view of a run, for saved notebooks, exports and terminals.

It may be read long after it was made, so it has nothing of a running run that changes soon.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from jupyter_sky.cluster.snapshot import (
    CurveView,
    RankOutcome,
    RankView,
    RunState,
    RunView,
    Snapshot,
)
from jupyter_sky.formatting import (
    aligned,
    format_bytes,
    format_cost,
    format_count,
    format_elapsed,
    format_ranks,
    plain,
)
from jupyter_sky.notebook.panel import static_curves

_STATES = {
    RunState.WAITING: "… waiting for its turn",
    RunState.RUNNING: "▸ running since",
    RunState.OK: "✓ finished after",
    RunState.ERROR: "✗ failed after",
    RunState.INTERRUPTED: "■ stopped after",
}
_OUTCOMES: Mapping[str, str] = {
    RankOutcome.OK: "finished",
    RankOutcome.ERROR: "failed",
    RankOutcome.LOST: "lost",
    RankOutcome.STOPPED: "stopped",
    RankOutcome.RELEASED: "stopped",
}
_LONGEST = 120
_WORTH_SAYING = (
    100_000  # least bytes sent for a run that are shown; as in ``labextension/src/strip.ts``
)


def headline(snapshot: Snapshot) -> str:
    """Return a line about the progress of a run, or how it ended."""
    run, cluster = snapshot["run"], snapshot["cluster"]
    count = format_count(cluster["nodes"], f"{cluster['provider']} node")
    made = f"{cluster['name']}, {count}{' × ' + cluster['gpu'] if cluster['gpu'] else ''}"
    if run is None:
        return plain(f"{made}: nothing has run yet")
    parts = [_state(run)]
    if attempt := run["attempt"]:
        parts.append("attempt {} of {}".format(*attempt))
    is_over = not is_going_on(run)
    if is_over and run["progress"] and run["progress"]["part"] < 1:
        parts.append(f"{100 * run['progress']['part']:.0f} %")
    parts.append(f"{format_ranks(run['ranks'])} of {made}")
    if is_over and snapshot["sent_bytes"] >= _WORTH_SAYING:
        parts.append(f"{format_bytes(snapshot['sent_bytes'])} sent")
    if is_over and run["cost"] is not None:
        parts.append(format_cost(run["cost"], cluster["unit"]))
    if run["trouble"]:
        parts.append(run["trouble"])
    return plain(" · ".join(parts))


def as_text(snapshot: Snapshot) -> str:
    """Return the view as plain text."""
    return StaticView(snapshot).as_text()


def as_html(snapshot: Snapshot, is_open: bool = False) -> str:
    """Return the view as HTML without scripts and style sheets, for any page."""
    return StaticView(snapshot).as_html(is_open)


class StaticView:
    """The view of one snapshot, as text and as HTML.

    Parameters
    ----------
    snapshot
        The snapshot.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._headline = headline(snapshot)
        self._rows = [*aligned([*_rows(snapshot)])]
        self._curves = _curves(snapshot)

    def as_text(self) -> str:
        """Return it as plain text."""
        lines = [
            *(f"  {row}" for row in self._rows),
            *(f"  {plain(line)}" for line in static_curves.as_lines(self._curves)),
        ]
        return "\n".join([self._headline, *lines])

    def as_html(self, is_open: bool) -> str:
        """Return it as HTML without scripts and style sheets, for any page."""
        return "".join(self._html(is_open))

    def _html(self, is_open: bool) -> Iterator[str]:
        yield f"<details{' open' * is_open}><summary>{escape(self._headline)}</summary>"
        if self._rows:
            # Text, not a table: pages align each cell to the right that has no style of its own,
            # and hundreds of ranks with these took more room in the notebook than all else.
            yield f'<pre style="{_ONE_LINE_EACH}">{escape(chr(10).join(self._rows))}</pre>'
        yield "</details>"
        yield static_curves.as_html(self._curves)


# Said although it is usual for such text: the pages of notebooks say otherwise.
_ONE_LINE_EACH = "font-family: monospace; margin: 4px 0; white-space: pre; overflow-x: auto"


def _curves(snapshot: Snapshot) -> list[CurveView]:
    return [{**curve, "name": plain(curve["name"])} for curve in snapshot["curves"]]


def is_going_on(run: RunView) -> bool:
    """Return whether a run is not over."""
    return run["state"] in (RunState.RUNNING, RunState.WAITING)


def _state(run: RunView) -> str:
    words = _STATES[RunState(run["state"])]
    if run["state"] == RunState.WAITING:
        return words
    if run["state"] == RunState.RUNNING:
        return f"{words} {time.strftime('%Y-%m-%d %H:%M', time.localtime(run['started']))}"
    return f"{words} {format_elapsed(run['seconds'])}"


def _rows(snapshot: Snapshot) -> Iterator[Sequence[str]]:
    """Yield the cells for each rank of a run that is over, ending with its last line of output."""
    run = snapshot["run"]
    if run is None or is_going_on(run):
        return
    gpus = {
        node["node"]: plain(node["gpu"]) if node["gpu"] else "CPU" for node in snapshot["nodes"]
    }
    for rank in snapshot["ranks"]:
        outcome = rank["outcome"]
        line = rank["error"] or rank["trouble"] or rank["line"]
        yield [
            f"rank {rank['rank']}",
            f"node {rank['node']}",
            gpus.get(rank["node"], "CPU"),
            _OUTCOMES[outcome] if outcome else rank["phase"],
            _mark(rank),
            format_elapsed(rank["seconds"]) if rank["seconds"] is not None else "",
            plain(line)[:_LONGEST] if line else "",
        ]


def _mark(rank: RankView) -> str:
    if rank["restarted"]:
        return "restarted, empty"
    if rank["began_empty"]:
        return "began empty"
    return "another rank failed" if rank["outcome"] == RankOutcome.RELEASED else ""
