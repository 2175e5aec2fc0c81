"""Sets of ranks as ranges, so that a message costs as little for a thousand ranks as for one.

Ranges that come from other machines may be of any length: ask `includes` and `among` about known
ranks, and use `ranks_of` only for ranges that the notebook itself has sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

RankRanges = list[tuple[int, int]]
"""First and last rank of each range, in order."""


def to_ranges(ranks: Iterable[int]) -> RankRanges:
    """Return ranks as ranges.

    >>> to_ranges([0, 1, 2, 5])
    [(0, 2), (5, 5)]
    """
    ranges: RankRanges = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    return ranges


def ranks_of(ranges: RankRanges) -> list[int]:
    """Return the ranks in ranges, in order."""
    return [rank for first, last in ranges for rank in range(first, last + 1)]


def count(ranges: RankRanges) -> int:
    """Return the number of ranks in ranges."""
    return sum(last + 1 - first for first, last in ranges)


def includes(ranges: RankRanges, rank: int) -> bool:
    """Return whether a rank is in ranges."""
    return any(first <= rank <= last for first, last in ranges)


def among(ranges: RankRanges, ranks: Collection[int]) -> list[int]:
    """Return those of ``ranks`` that are in ranges, in order."""
    return sorted({rank for first, last in ranges for rank in ranks if first <= rank <= last})
