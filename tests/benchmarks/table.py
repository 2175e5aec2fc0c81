"""The table of a run, and the same as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.benchmarks.measure import Row, number


def render(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown, readable in a terminal too, and notes beneath."""
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    head = ["what", "ours", "to reach", "", "ratio", *peers]
    lines = [head, *(_cells(row, peers) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    table = [_line(line, widths) for line in [head, ["-" * width for width in widths], *lines[1:]]]
    notes = [f"- {row.what}: {row.note}" for row in rows if row.note]
    return "\n".join([*table, "", *notes])


def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows for a JSON file."""
    return [{**asdict(row), "ratio": row.ratio, "reached": row.reached} for row in rows]


def _cells(row: Row, peers: Sequence[str]) -> list[str]:
    return [
        row.what,
        "failed" if row.ours is None else f"{number(row.ours)} {row.unit}",
        str(row.target or ""),
        {True: "yes", False: "no", None: ""}[row.reached],
        f"{number(row.ratio)} × {row.base.name}" if row.base and row.ratio is not None else "",
        *(_peer(row.peers.get(peer, "")) for peer in peers),
    ]


def _peer(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"
