"""The variables of all ranks as rows of a table: one row for a name if ranks agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jupyter_sky.transport.protocol.inspection import LookedRank, SeenName


@dataclass(frozen=True)
class NameRow:
    """The value of a name on some ranks.

    Attributes
    ----------
    ranks
        The ranks.
    type, shape, dtype, device
        As shown to users; empty if there is none.
    size
        The largest size in bytes; ``None`` if that is not known.
    is_everywhere
        Whether all ranks that answered have the name.
    differ
        Whether their values differ; ``None`` if only types and shapes were compared.
    """

    name: str
    ranks: tuple[int, ...]
    type: str
    shape: str
    dtype: str
    device: str
    size: int | None
    is_everywhere: bool
    differ: bool | None


def rows(looked: Sequence[LookedRank]) -> tuple[NameRow, ...]:
    """Return the rows for the answers of ranks, sorted by name and then by rank."""
    by_name: dict[str, dict[int, SeenName]] = {}
    for each in looked:
        for seen in each["names"]:
            by_name.setdefault(seen["name"], {})[each["rank"]] = seen
    found = []
    for name in sorted(by_name):
        there = by_name[name]
        groups: dict[tuple[str, str, str, str], list[int]] = {}
        for rank, seen in there.items():
            # Each rank of a node has its own GPU.
            device = seen["device"].partition(":")[0]
            key = (seen["type"], seen["shape"], seen["dtype"], device)
            groups.setdefault(key, []).append(rank)
        for ranks in groups.values():
            first = there[ranks[0]]
            devices = dict.fromkeys(there[rank]["device"] for rank in ranks)
            found.append(
                NameRow(
                    name,
                    tuple(ranks),
                    first["type"],
                    first["shape"],
                    first["dtype"],
                    first["device"] if len(devices) == 1 else first["device"].partition(":")[0],
                    _largest(there[rank]["size"] for rank in ranks),
                    len(there) == len(looked),
                    _differ([there[rank]["digest"] for rank in ranks]),
                )
            )
    return tuple(found)


def _largest(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _differ(digests: Sequence[str]) -> bool | None:
    if len(digests) < 2 or not all(digests):
        return False if len(digests) < 2 else None
    return len(set(digests)) > 1
