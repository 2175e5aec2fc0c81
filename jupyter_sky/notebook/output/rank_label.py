"""What lines begin with where several ranks are shown: the number of their rank."""

from __future__ import annotations

from collections.abc import Sequence


def label_width(ranks: Sequence[int]) -> int:
    """Return how wide the numbers of these ranks are; 0 for one rank, which needs no label."""
    return len(str(max(ranks))) if len(ranks) > 1 else 0


def label(rank: int, width: int) -> str:
    """Return what a line of a rank begins with."""
    return f"{rank:>{width}} │ " if width else ""
