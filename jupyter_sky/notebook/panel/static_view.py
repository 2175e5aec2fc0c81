"""A static view of a cluster: what a saved notebook, an export or a terminal shows of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from jupyter_sky.cluster.snapshot import RankView, Snapshot
from jupyter_sky.formatting import aligned, format_bytes, format_count, format_dollars, format_ranks

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# Control characters, and those that change the direction of the text around them.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
_STATES = {
    "running": "running for",
    "ok": "finished after",
    "error": "failed after",
    "interrupted": "stopped after",
}
_LONGEST = 120


def as_text(snapshot: Snapshot) -> str:
    """Return the view as plain text."""
    rows = [_cells(snapshot, rank) for rank in snapshot["ranks"]]
    return "\n".join([_heading(snapshot), _run(snapshot), *(f"  {row}" for row in aligned(rows))])


def as_html(snapshot: Snapshot, key: str | None = None) -> str:
    """Return the view as HTML without script and style sheet, fit for any page.

    A page that has the panel with this ``key`` shows the panel in its place.
    """
    return "".join(_html(snapshot, f' data-jsky="{escape(key)}"' if key else ""))


def _html(snapshot: Snapshot, mark: str) -> Iterator[str]:
    yield f"<div{mark}>"
    yield f"<div><strong>{escape(_heading(snapshot))}</strong></div>"
    yield f"<div>{escape(_run(snapshot))}</div>"
    yield '<table style="font-variant-numeric: tabular-nums; margin: 4px 0">'
    for rank in snapshot["ranks"]:
        *cells, line = _cells(snapshot, rank)
        yield "<tr>"
        for cell in cells:
            yield f'<td style="text-align: left; white-space: nowrap">{escape(cell)}</td>'
        yield f'<td style="text-align: left"><code>{escape(line)}</code></td></tr>'
    yield "</table></div>"


def _heading(snapshot: Snapshot) -> str:
    cluster = snapshot["cluster"]
    count = cluster["nodes"]
    nodes = f"{format_count(count, cluster['provider'] + ' node')}"
    made = f"{nodes} × {cluster['gpu']}" if cluster["gpu"] else f"{nodes}, CPU"
    parts = [f"{cluster['name']}: {cluster['phase']}", made]
    if cluster["price"] is not None and cluster["cost"] is not None:
        parts += [
            f"{format_dollars(cluster['price'])} an hour",
            f"{format_dollars(cluster['cost'])} so far",
        ]
    return _plain(", ".join(parts))


def _run(snapshot: Snapshot) -> str:
    run = snapshot["run"]
    if run is None:
        return "nothing has run yet"
    state = f"{_STATES[run['state']]} {run['seconds']:.1f} s"
    parts = [
        f"{state} on {format_ranks(run['ranks'])}",
        f"{format_bytes(snapshot['sent_bytes'])} sent",
    ]
    return ", ".join(parts)


def _cells(snapshot: Snapshot, rank: RankView) -> Sequence[str]:
    gpus = {node["node"]: node["gpu"] for node in snapshot["nodes"]}
    memory = rank["memory"]
    return [
        f"rank {rank['rank']}",
        f"node {rank['node']}",
        _plain(gpus.get(rank["node"]) or "CPU"),
        rank["phase"],
        f"{format_bytes(memory[0])} of {format_bytes(memory[1])}" if memory else "",
        _plain(rank["trouble"] or rank["line"])[:_LONGEST],
    ]


def _plain(text: str) -> str:
    """Return text on one line, without escapes and control characters."""
    return " ".join(_INVISIBLE.sub("", _ESCAPE.sub("", text)).split())
