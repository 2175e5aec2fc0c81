"""Figures against the number of nodes, as curves in an SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from tests.benchmarks.measure import Row, number

STYLE = """
  .curve { fill: none; stroke: #f37726; stroke-width: 2 }
  .axis { stroke: #afb8c1 }
  .target { stroke: #57606a; stroke-dasharray: 4 4 }
  @media (prefers-color-scheme: dark) {
    .axis { stroke: #484f58 }
    .target { stroke: #8d96a0 }
  }
"""

_WIDE, _HIGH = 300, 110  # pixels of the plane of a curve
_LEFT, _TOP, _BELOW = 10, 44, 46
_COLUMNS = 2
_STEP_X, _STEP_Y = 390, _HIGH + _TOP + _BELOW


def draw(rows: Sequence[Row], top: int) -> tuple[list[str], int]:
    """Return the elements of all curves, below ``top``, and the pixels that they take.

    Rows with the same name of a curve are its points, and their target is a line across it. From
    left to right each doubling has the same width; the curve's plane begins at 0.
    """
    parts: list[str] = []
    at = 0
    for name, points in itertools.groupby(
        sorted((row for row in rows if row.point and row.ours is not None), key=_order), _name
    ):
        left = (at % _COLUMNS) * _STEP_X + _LEFT
        parts += _curve(name, list(points), left, top + at // _COLUMNS * _STEP_Y + _TOP)
        at += 1
    return parts, math.ceil(at / _COLUMNS) * _STEP_Y


def _name(row: Row) -> str:
    assert row.point
    return f"{row.point.curve}, {row.unit}"


def _order(row: Row) -> tuple[str, float]:
    assert row.point
    return _name(row), row.point.x


def _curve(name: str, rows: Sequence[Row], left: float, top: float) -> list[str]:
    values = [row.ours or 0.0 for row in rows]
    limit = next((row.target.limit for row in rows if row.target), None)
    highest = max([*values, limit or 0.0]) or 1.0
    scale = [math.log(row.point.x) for row in rows if row.point]
    span = (scale[-1] - scale[0]) or 1.0
    bottom = top + _HIGH
    xs = [left + _WIDE * (each - scale[0]) / span for each in scale]
    ys = [bottom - _HIGH * value / highest for value in values]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    parts = [
        _text(left, top - 26, name, "head"),
        _line("axis", left, bottom, bottom),
        f'<polyline class="curve" points="{points}"/>',
    ]
    if limit is not None:
        y = bottom - _HIGH * limit / highest
        parts += [
            _line("target", left, y, y),
            _text(left + _WIDE + 6, y + 4, f"≤ {limit:g}", "note"),
        ]
    for x, y, value, row in zip(xs, ys, values, rows, strict=True):
        assert row.point
        parts += [
            f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="3"/>',
            _text(x, y - 8, number(value)),
            _text(x, bottom + 18, f"{row.point.x:g}", "note"),
        ]
    return parts


def _line(kind: str, left: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{left}" y1="{y1:.1f}" x2="{left + _WIDE}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'
