"""All ranks agree on what they form, before torch connects them.

The head counts them in the store, so that an error can name those that are missing.
"""

from __future__ import annotations

import json
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
    backend
        One that each of them can have.
    made, groups
        How many groups were numbered, and those beside the one of all ranks that are formed again.
    """

    backend: Backend
    made: int
    groups: list[Subgroup]


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
    wish = json.dumps([own, *subgroups.in_use(info.world_size)], default=astuple)
    missing, agreed = exchange(info, store, wish, deadline)
    if missing:
        raise SkyError(
            f"the process group was not formed within {deadline:g} s: "
            f"{_listed(missing, info)} did not join."
        )
    backend, made, groups = agreed
    # What ranks have in common is there once, with what the first of them says.
    distinct = dict.fromkeys(Subgroup(name, tuple(ranks), *rest) for name, ranks, *rest in groups)
    return Agreed(backend, made, [*distinct])


def _count_ranks(
    info: InstanceInfo, store: Store, wish: str, deadline: float
) -> tuple[list[int], list[Any]]:
    others = range(1, info.world_size)
    missing = []
    if not wait_for_keys(store, [_here(rank) for rank in others], deadline):
        missing = [rank for rank in others if not store.check([_here(rank)])]
    have_come = [rank for rank in others if rank not in missing]
    wishes = [json.loads(each) for each in [wish, *store.multi_get([*map(_here, have_come)])]]
    has_nccl = all(backend == "nccl" for backend, _, _ in wishes)
    can_be_formed = all(groups is not None for _, _, groups in wishes)
    groups = [each for _, _, groups in wishes for each in groups] if can_be_formed else []
    agreed = ["nccl" if has_nccl else "gloo", max(made for _, made, _ in wishes), groups]
    store.set("answer", json.dumps([missing, agreed]))
    if missing:
        # The store ends with the head: the ranks that came must read this first.
        wait_for_keys(store, [_heard(rank) for rank in have_come], _ANSWER_WITHIN)
    return missing, agreed


def _answer(
    info: InstanceInfo, store: Store, wish: str, deadline: float
) -> tuple[list[int], list[Any]]:
    store.set(_here(info.rank), wish)
    if not wait_for_keys(store, ["answer"], deadline + _ANSWER_WITHIN):
        return [0], []
    missing, agreed = json.loads(store.get("answer"))
    store.set(_heard(info.rank), "")
    return missing, agreed


def _here(rank: int) -> str:
    return f"rank {rank} is here"


def _heard(rank: int) -> str:
    return f"rank {rank} has heard"


def _listed(ranks: list[int], info: InstanceInfo) -> str:
    nodes = {rank: peer for peer in info.peers for rank in peer.ranks}
    return ", ".join(
        f"rank {rank} (node {nodes[rank].node} at {nodes[rank].addr})"
        if rank in nodes
        else f"rank {rank}"
        for rank in ranks
    )
