"""Curves as a picture that stays in a saved notebook: HTML with SVG, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from jupyter_sky.cluster.snapshot import CurveView
from jupyter_sky.formatting import shortened

_MOST = 12  # most charts; a table has the others
_WIDTH, _HEIGHT, _MARGIN = 200, 80, 3
_DASH = 6  # length of the dash for a point that has no neighbours
_SCALE = 50  # room for numbers on the left
_BLUE = "#3d8bd9"  # visible on white and on black


def as_html(curves: Sequence[CurveView]) -> str:
    """Return the curves of the head, or of the first rank that logged any; empty if none did."""
    first: dict[str, CurveView] = {}
    for curve in curves:
        first.setdefault(curve["name"], curve)
    return "".join(_html(list(first.values()))) if first else ""


def as_lines(curves: Sequence[CurveView]) -> Iterator[str]:
    """Yield a line with the latest value of each curve, for a terminal."""
    seen: set[str] = set()
    for curve in curves:
        if curve["name"] not in seen and len(seen) < _MOST:
            seen.add(curve["name"])
            yield f"{curve['name']}: {_figure(curve['last'])} ({curve['count']:,} logged)"


def _html(curves: Sequence[CurveView]) -> Iterator[str]:
    yield '<div style="display: flex; flex-wrap: wrap; gap: 8px 24px; margin: 6px 0">'
    for curve in curves[:_MOST]:
        yield _chart(curve)
    yield "</div>"
    if (more := len(curves) - _MOST) > 0:
        yield f"<div>{more} more: <code>%sky metrics</code> has them</div>"


def _chart(curve: CurveView) -> str:
    points = list(zip(curve["steps"], curve["values"], strict=True))
    values = [value for _, value in points if value is not None]
    low, high = min(values, default=math.nan), max(values, default=math.nan)
    left = min(curve["steps"], default=0)
    right = max(curve["steps"], default=0)
    rank = f", rank {curve['rank']}" if curve["rank"] else ""
    gaps = f", {curve['gaps']:,} NaN/∞" if curve["gaps"] else ""
    name = escape(curve["name"])
    small = 'font-size="10" fill="currentColor" fill-opacity="0.75"'
    bottom = _HEIGHT + 14
    ends = f'x="{_WIDTH}" text-anchor="end"'
    texts = [
        f'<text x="-{_SCALE}" y="-6" font-size="12" fill="currentColor">'
        f'<tspan font-weight="600">{_cut(curve["name"])}</tspan>{rank}{gaps}</text>',
        f'<text {ends} y="-6" font-size="12" fill="currentColor">{_figure(curve["last"])}</text>',
        f'<text x="-4" y="10" text-anchor="end" {small}>{_figure(high, 3)}</text>',
        f'<text y="{bottom}" {small}>{_figure(left)}</text>',
    ]
    if low < high:
        text = f'<text x="-4" y="{_HEIGHT}" text-anchor="end" {small}>{_figure(low, 3)}</text>'
        texts.append(text)
    if left < right:
        texts.append(f'<text {ends} y="{bottom}" {small}>{_figure(right)}</text>')
    wide, tall = _WIDTH + _SCALE, _HEIGHT + 36
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" '
        f'viewBox="-{_SCALE} -18 {wide} {tall}" role="img" font-family="sans-serif" '
        f'aria-label="{name}: {_figure(curve["last"])}">'
        f'<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="currentColor" '
        f'stroke-opacity="0.3"/>'
        f'<path d="{_path(points, (left, right), (low, high))}" fill="none" stroke="{_BLUE}" '
        f'stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"/>'
        f"{''.join(texts)}</svg>"
    )


def _path(
    points: Sequence[tuple[float, float | None]],
    steps: tuple[float, float],
    values: tuple[float, float],
) -> str:
    """Return points as an SVG path, with a gap for each missing value."""
    wide, tall = steps[1] - steps[0], values[1] - values[0]
    parts, is_drawing = [], False
    after = [value for _, value in points[1:]] + [None]
    for (step, value), next_value in zip(points, after, strict=True):
        if value is None:
            is_drawing = False
            continue
        x = ((step - steps[0]) / wide if wide > 0 else 0.5) * _WIDTH
        part = (value - values[0]) / tall if tall > 0 else 0.5
        y = _HEIGHT - _MARGIN - part * (_HEIGHT - 2 * _MARGIN)
        if is_drawing or next_value is not None:
            parts.append(f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}")
        else:
            parts.append(f"M{x - _DASH / 2:.1f} {y:.1f}h{_DASH}")
        is_drawing = True
    return "".join(parts)


def _cut(name: str) -> str:
    return escape(shortened(name, 24))


def _figure(value: float | None, digits: int = 4) -> str:
    if value is None or not math.isfinite(value):
        return "NaN/∞"  # JSON has neither, and a snapshot one sign for both
    return str(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.{digits}g}"
