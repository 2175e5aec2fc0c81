"""All ranks agree on what they form, before torch connects them.

The head counts them in the store, so that an error can name those that are missing.
"""

from __future__ import annotations

import itertools
import json
import uuid
from contextlib import suppress
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.errors import SkyError
from jupyter_sky.plugins.torch_group import subgroups
from jupyter_sky.plugins.torch_group.store_wait import wait_for_keys
from jupyter_sky.plugins.torch_group.subgroups import Subgroup

if TYPE_CHECKING:
    from torch.distributed import Store

Backend = Literal["nccl", "gloo"]

_ANSWER_WITHIN = 2.0  # seconds, of the head to a rank, and of a rank to the head


class Agreed(NamedTuple):
    """What all ranks form.

    Attributes
    ----------
    number
        That of the formation: the store may have what was written in former ones.
    backend
        One that each of them can have.
    made, groups
        How many groups were numbered, and those beside the one of all ranks that are formed again.
    """

    number: int
    backend: Backend
    made: int
    groups: list[Subgroup]


_numbers = itertools.count(1)  # of the formations of which this process was the head


def await_all_ranks(info: InstanceInfo, store: Store, own: Backend, deadline: float) -> Agreed:
    """Wait for every rank, or report which ones are missing; return what all of them form.

    Only the head counts, and tells the others, so that no rank continues if another gave up.

    Parameters
    ----------
    info
        The position of this rank.
    store
        The store that all ranks share.
    own
        What this rank can have, and would take.
    deadline
        Seconds to wait for the others.

    Raises
    ------
    SkyError
        If some ranks do not come, naming them.
    """
    exchange = _count_ranks if info.is_head else _answer
    # By its mark, the answer to a rank is known from those that it had in former formations.
    mark = uuid.uuid4().hex
    wish = json.dumps([mark, own, *subgroups.in_use(info.world_size)], default=astuple)
    missing, agreed = exchange(info, store, mark, wish, deadline)
    if missing:
        raise SkyError(
            f"the process group was not formed within {deadline:g} s: "
            f"{_listed(missing, info)} did not join."
        )
    number, backend, made, groups = agreed
    # What ranks have in common is there once, with what the first of them says.
    distinct = dict.fromkeys(Subgroup(name, tuple(ranks), *rest) for name, ranks, *rest in groups)
    return Agreed(number, backend, made, [*distinct])


def _count_ranks(
    info: InstanceInfo, store: Store, mark: str, wish: str, deadline: float
) -> tuple[list[int], list[Any]]:
    others = range(1, info.world_size)
    missing = []
    if not wait_for_keys(store, [_here(rank) for rank in others], deadline):
        missing = [rank for rank in others if not store.check([_here(rank)])]
    have_come = [_here(rank) for rank in others if rank not in missing]
    wishes = [json.loads(each) for each in [wish, *store.multi_get(have_come)]]
    for key in have_come:
        store.delete_key(key)
    marks, backends, made, groups = zip(*wishes, strict=True)
    backend = "nccl" if all(each == "nccl" for each in backends) else "gloo"
    to_form = [] if None in groups else [*itertools.chain(*groups)]
    agreed = [next(_numbers), backend, max(made), to_form]
    others_marks = [each for each in marks if each != mark]
    for each in others_marks:
        store.set(_answer_to(each), json.dumps([missing, agreed]))
    if missing:
        # The store ends with the head: the ranks that came must read this first.
        wait_for_keys(store, [*map(_heard, others_marks)], _ANSWER_WITHIN)
    return missing, agreed


def _answer(
    info: InstanceInfo, store: Store, mark: str, wish: str, deadline: float
) -> tuple[list[int], list[Any]]:
    store.set(_here(info.rank), wish)
    is_answered = False
    try:
        is_answered = wait_for_keys(store, [_answer_to(mark)], deadline + _ANSWER_WITHIN)
    finally:
        if not is_answered:
            with suppress(RuntimeError):  # the head has ended, and the store with it
                store.delete_key(_here(info.rank))
    if not is_answered:
        return [0], []
    missing, agreed = json.loads(store.get(_answer_to(mark)))
    store.set(_heard(mark), "")
    return missing, agreed


def _here(rank: int) -> str:
    return f"rank {rank} is here"


def _answer_to(mark: str) -> str:
    return f"answer to {mark}"


def _heard(mark: str) -> str:
    return f"{mark} has heard"


def _listed(ranks: list[int], info: InstanceInfo) -> str:
    nodes = {rank: peer for peer in info.peers for rank in peer.ranks}
    return ", ".join(
        f"rank {rank} (node {nodes[rank].node} at {nodes[rank].addr})"
        if rank in nodes
        else f"rank {rank}"
        for rank in ranks
    )
