"""Prices as a user can type them: those that are shown are rounded, and limits are exact."""

from __future__ import annotations

import math

from jupyter_sky.formatting import format_dollars

ROUNDING = 1e-9  # three times 0.2 is more than 0.6 to a computer


def format_sufficient(price: float) -> str:
    """Format a price as the limit that allows it: ``"$1.03"`` for 1.022."""
    parts = 100 if price >= 0.1 else 10_000  # as many as are shown
    return format_dollars(math.ceil((price - ROUNDING) * parts) / parts)


def as_limit(price: float) -> str:
    """Return what to type as the limit that allows a price: ``"1.03"`` for 1.022."""
    return format_sufficient(price).lstrip("$").replace(",", "")
