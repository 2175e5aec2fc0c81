"""Collectives that some ranks have begun in a run that ended well, and that others never will.

``if rank == 0: work = dist.all_reduce(x, async_op=True)`` ends well on all ranks. The next
collective of the others would meet this one, and all would wait for each other for ever.

Ranks say how many collectives they have begun, which costs nothing. Only where the numbers differ,
as also after messages between two ranks, they are asked what has not ended. A collective that all
have begun, and for which a later cell waits, is left alone. So is everything while a thread of a
rank may still begin some, as one that saves a checkpoint in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inspection.findings import is_begun, name_of
from jupyter_sky.cluster.inspection.inspect import look
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport.protocol.events import RankDone
from jupyter_sky.transport.protocol.inspection import SeenRank

_STAYS = 0.5
"""Seconds after which one that others lack is taken to be left alone."""


class _Unmatched(NamedTuple):
    """A collective that some ranks of a group have begun.

    Attributes
    ----------
    group, name
        The group, and what the collective is called.
    by, without
        The ranks that have begun it, and those that have not.
    """

    group: str
    name: str
    by: tuple[int, ...]
    without: tuple[int, ...]


def may_be_there(done: Collection[RankDone]) -> bool:
    """Return whether ranks have begun different numbers of collectives in a run that is over."""
    began = [each for each in done if each.begun]
    if not began:
        return False
    if any(each.outcome != "ok" or each.broken for each in done):
        return False  # the group will be formed again where it has to be
    numbers: dict[tuple[str, int], list[int]] = {}
    for each in began:
        for group, (number, size) in each.begun.items():
            numbers.setdefault((group, size), []).append(number)
    return any(
        # Of a larger group, others may begin it in a cell of their own.
        size <= len(done) and (len(found) < size or len(set(found)) > 1)
        for (_, size), found in numbers.items()
    )


async def find(controller: Controller, ranks: Collection[int]) -> str:
    """Return a sentence about collectives that only some ranks have begun; empty if there are none.

    Parameters
    ----------
    controller
        The cluster, whose ranks are idle.
    ranks
        The ranks of the run that is over.
    """
    if not (before := await _look(controller, ranks)):
        return ""
    await asyncio.sleep(_STAYS)
    after = await _look(controller, ranks)
    if not (found := [each for each in before if each in after]):
        return ""
    said = "; ".join(
        f"{format_ranks(each.by)} began {each.name}, and {format_ranks(each.without)} ended without"
        for each in found
    )
    return (
        f"{said}: that was given up and the process group is formed again, as the next collective "
        "would have met it. Begin each collective on all ranks of its group."
    )


async def _look(controller: Controller, ranks: Collection[int]) -> list[_Unmatched]:
    seen, _ = await look(controller)
    known = {each["rank"]: each for each in seen if each["rank"] in ranks}
    has_answered = known.keys() == set(ranks) and all(map(_is_idle, known.values()))
    return list(dict.fromkeys(_unmatched(known))) if has_answered else []


def _is_idle(seen: SeenRank) -> bool:
    return seen["answered"] == "itself" and seen["run"] is None and not seen.get("beside")


def _unmatched(known: Mapping[int, SeenRank]) -> Iterator[_Unmatched]:
    for each in known.values():
        for one in each["collectives"]:
            members = one["ranks"]
            if not known.keys() >= set(members):
                continue
            by = tuple(rank for rank in members if is_begun(one, known[rank]))
            if without := tuple(rank for rank in members if rank not in by):
                yield _Unmatched(one["group"], name_of(one), by, without)
