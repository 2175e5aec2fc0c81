"""Many ranks in few words: as ranges, so that a message costs the same for a thousand as for one.

Ranges come from other machines, and can be of any length: `includes` and `among` ask of ranks that
are known, and `ranks_of` is for those that the notebook itself has sent.
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
    """Return the ranks of ranges, in order."""
    return [rank for first, last in ranges for rank in range(first, last + 1)]


def count(ranges: RankRanges) -> int:
    """Return how many ranks there are in ranges."""
    return sum(last + 1 - first for first, last in ranges)


def includes(ranges: RankRanges, rank: int) -> bool:
    """Return whether a rank is in ranges."""
    return any(first <= rank <= last for first, last in ranges)


def among(ranges: RankRanges, ranks: Collection[int]) -> list[int]:
    """Return those of ``ranks`` that are in ranges, in order."""
    return sorted({rank for first, last in ranges for rank in ranks if first <= rank <= last})
