"""Parts of pictures: SVG in HTML, without scripts and style sheets, for any page.

Text on the page has the page's colour, and text in a box is dark on a light colour, so that
everything is readable on light and dark pages. Widths are fractions of the page's width; heights
are fixed.
"""

from __future__ import annotations

import re
from html import escape

COLOURS = {
    "compute": "#f4b26a",
    "communication": "#8ebfee",
    "data": "#93d18f",
    "waiting": "#cdb8ea",
    "outside": "#d6d6d6",
    "other": "#b9b9b9",
}
"""By activity, as `jupyter_sky.cluster.profiling.profile.ACTIVITIES` has them."""

INK = "#1a1a1a"
"""Of text in boxes."""

ROW = 18
"""Pixels of a row."""

_PIXELS = 800  # pixels assumed when deciding whether a text has room
_CHARACTER = 6.2  # pixels
_FONT = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11"'
# Characters that XML cannot contain, or that change the direction of the text around them.
# Compiling it takes 1.6 ms, so it is left to the first use, after which `re` keeps it.
_UNFIT = (
    "[^\t\n\r -\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2029\u202f-\u2065\u206a-\ud7ff"
    "\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def clean(text: str) -> str:
    """Return a text on one line, escaped for a page."""
    return escape(" ".join(re.sub(_UNFIT, "", text).split()))


def box(x: float, y: float, width: float, colour: str, label: str, title: str) -> str:
    """Return a box, with a label if there is room for it.

    Parameters
    ----------
    x, width
        Fractions of the picture's width.
    y
        Pixels.
    colour
        Of the box.
    label, title
        The text in it, and its tooltip.
    """
    room = width * _PIXELS / _CHARACTER - 1
    text = (
        f'<text x="4" y="12" fill="{INK}" {_FONT}>{clean(label)}</text>'
        if room >= min(3, len(label))
        else ""
    )
    return (
        f'<svg x="{100 * x:.2f}%" y="{y}" width="{100 * width:.2f}%" height="{ROW - 1}">'
        f'<title>{clean(title)}</title><rect width="100%" height="100%" rx="2" fill="{colour}"/>'
        f"{text}</svg>"
    )


def words(x: float, y: float, text: str, *, title: str = "", anchor: str = "start") -> str:
    """Return text in the page's colour; ``x`` is a fraction of the width, ``y`` is in pixels."""
    shown = f"<title>{clean(title)}</title>" if title else ""
    return (
        f'<text x="{100 * x:.2f}%" y="{y + 12}" fill="currentColor" text-anchor="{anchor}" '
        f"{_FONT}>{shown}{clean(text)}</text>"
    )


def picture(parts: list[str], height: int, label: str) -> str:
    """Return a picture made of parts; ``label`` describes it for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{clean(label)}" '
        f'width="100%" height="{height}" style="display: block; margin: 6px 0">'
        f"{''.join(parts)}</svg>"
    )
