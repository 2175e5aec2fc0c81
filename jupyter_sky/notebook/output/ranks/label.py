"""Labels of lines when several ranks are shown: the number of their rank."""

from __future__ import annotations

from collections.abc import Sequence


def label_width(ranks: Sequence[int]) -> int:
    """Return the width of these ranks' numbers; 0 for a single rank, which needs no label."""
    return len(str(max(ranks))) if len(ranks) > 1 else 0


def label(rank: int, width: int) -> str:
    """Return the label of a rank's lines."""
    return f"{rank:>{width}} │ " if width else ""
