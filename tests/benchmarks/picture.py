"""The figures as an SVG that a README shows in light and in dark.

Bars are figures that peers have as well, curves figures against the number of nodes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from xml.sax.saxutils import escape

import psutil

from tests.benchmarks import curves
from tests.benchmarks.measure import Row, number

_WIDTH = 760
_NAMES, _BARS = 150, 470  # pixels for names, and for the longest bar
_LINE, _HEAD, _GAP = 22, 30, 14
_OURS = "jupyter_sky"

_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .head { font-weight: 600 }
  .note { fill: #57606a; font-size: 12px }
  .ours { fill: #f37726 }
  .peer { fill: #afb8c1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .note { fill: #8d96a0 }
    .peer { fill: #484f58 }
  }
"""


def draw(rows: Sequence[Row], about: str) -> str:
    """Return the rows that peers have a figure for, and those that are points of curves, as an SVG.

    Parameters
    ----------
    rows
        The figures; bars of one row share a scale that begins at 0.
    about
        On what machine, and when, they were measured.
    """
    parts: list[str] = []
    y = 0
    for row in rows:
        measured = {name: value for name, value in row.peers.items() if not isinstance(value, str)}
        if row.ours is None or not measured:
            continue
        y += _HEAD
        parts.append(_text(0, y - 10, f"{row.what}, {row.unit}", "head"))
        bars = {_OURS: row.ours, **dict(sorted(measured.items(), key=lambda each: each[1]))}
        longest = max(bars.values())
        for name, value in bars.items():
            parts += _bar(y, name, value, value / longest if longest else 0)
            y += _LINE
        y += _GAP
    drawn, high = curves.draw(rows, y)
    parts += drawn
    y += high + _LINE
    parts.append(_text(0, y - 8, about, "note"))
    size = f'width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, f"<style>{_STYLE}{curves.STYLE}</style>", *parts, "</svg>", ""])


def machine() -> str:
    """Return what is measured on, and when."""
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0]
    return (
        f"{cores} cores ({platform.machine()}), {memory:.0f} GB, {platform.system()}, "
        f"{datetime.now(UTC):%Y-%m-%d}; load when it ended {load:.1f}"
    )


def _bar(y: int, name: str, value: float, share: float) -> list[str]:
    kind = "ours" if name == _OURS else "peer"
    width = max(2.0, _BARS * share)
    middle = y + _LINE - 7
    return [
        _text(0, middle, name),
        f'<rect class="{kind}" x="{_NAMES}" y="{y + 3}" width="{width:.1f}" height="{_LINE - 6}" '
        'rx="2"/>',
        _text(_NAMES + width + 8, middle, number(value)),
    ]


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{style}>{escape(text)}</text>'
