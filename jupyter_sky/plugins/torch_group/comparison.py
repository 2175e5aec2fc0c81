"""Ranks find out whether what they train is still equal, and make replicas of models equal again.

A run may be cut off on some ranks before the optimizer's step, and on others after it. Before the
next run of all ranks, each counts in the group's store those that have what it has. That is not a
collective: it disturbs none of the user's, and a rank that does not come, as it has left the group,
only costs the others some time. Nothing is sent where all have the same.

Models are found by their shapes. Those that look alike are made equal when each is used next: only
the user's code knows which of them is which on another rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from jupyter_sky.plugins.torch_group import accumulation, replicas, shards
from jupyter_sky.plugins.torch_group.replicas import Replica
from jupyter_sky.plugins.torch_group.store_wait import wait_for_keys
from jupyter_sky.plugins.torch_group.trained import Trained, find
from jupyter_sky.transport import present_run

if TYPE_CHECKING:
    from torch.distributed import Store

_PATIENCE = 10.0  # seconds, for ranks that have not come

_APART = (
    "The last run was cut off between the steps of an optimizer on one rank and on another: the "
    "shards of the model are of different steps. Training goes on from there. To have them of the "
    "same step, load a checkpoint with `sky.load`, or make model and optimizer again."
)


def compare_replicas() -> None:
    """Make replicas equal that differ; all ranks call this together."""
    import torch.distributed as dist

    store = present_run.group_store()
    if store is None or dist.get_world_size() < 2:
        return
    found: dict[str, list[Replica]] = defaultdict(list)
    trained = find()
    for model in trained.models:
        with contextlib.suppress(Exception):  # what the user has made of it
            for each in replicas.of_model(model):
                found[_name(each)].append(each)
    try:
        counts = _Counts(store, present_run.identity())
        told = _different(counts, found, trained)
    except dist.DistError:  # the head is lost: the group will be formed again
        return
    for name, is_known in sorted(told.replicas.items()):
        for each in found[name]:
            replicas.drop_unfinished_step(each, trained)
            # Where it fails, it fails the next step as well, and not each cell from now on.
            replicas.make_equal_at_next_step(each.model)
            if is_known:
                replicas.make_equal(each, trained)
    if told.accumulated:
        accumulation.drop_accumulated(trained)
    if told.shards:
        print(_APART, file=sys.stderr)


class _Different(NamedTuple):
    """What differs between ranks.

    Attributes
    ----------
    replicas
        The names of replicas, each with whether it can be made equal now.
    accumulated
        Whether ranks have accumulated different numbers of batches.
    shards
        Whether shards are of different steps.
    """

    replicas: dict[str, bool]
    accumulated: bool
    shards: bool


def _different(
    counts: _Counts, replicas_by_name: dict[str, list[Replica]], trained: Trained
) -> _Different:
    import torch.distributed as dist

    prints = {
        name: sorted(replicas.fingerprint(each, trained) for each in alike)
        for name, alike in replicas_by_name.items()
    }
    steps = {}
    with contextlib.suppress(Exception):  # of another version of torch, or a class of the user's
        steps = shards.steps_taken(trained)
    for name, found in prints.items():
        counts.add(f"{name}: {found}")
        if len(found) == 1 and not replicas.waits_for_step(replicas_by_name[name][0].model):
            counts.add(f"{name} is known")
    for name, taken in steps.items():
        counts.add(name)
        counts.add(f"{name}: {taken}")
    batches = f"accumulated: {accumulation.accumulated(trained)}"
    counts.add(batches)
    have_come = counts.await_all()
    different = {}
    for name, found in prints.items():
        size = replicas_by_name[name][0].group.size()
        if not (have_come and counts.of(f"{name}: {found}") == size):
            different[name] = have_come and counts.of(f"{name} is known") == size
    is_apart = have_come and any(
        counts.of(f"{name}: {taken}") < counts.of(name) for name, taken in steps.items()
    )
    size = dist.get_world_size()
    return _Different(different, not (have_come and counts.of(batches) == size), is_apart)


class _Counts:
    """How many ranks have what, before a run."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run

    def add(self, what: str) -> None:
        self._store.add(self._key(what), 1)

    def of(self, what: str) -> int:
        return int(self._store.add(self._key(what), 0))

    def await_all(self) -> bool:
        """Return whether all ranks have counted, which has the same answer on each of them."""
        import torch.distributed as dist

        answer = self._key("answer")
        if self._store.add(self._key("ranks"), 1) == dist.get_world_size():
            self._store.compare_set(answer, "", "all")
        if not wait_for_keys(self._store, [answer], _PATIENCE):
            self._store.compare_set(answer, "", "not all")
        return bool(self._store.get(answer) == b"all")

    def _key(self, what: str) -> str:
        return f"{self._run}: {_digest(what)}"


def _name(replica: Replica) -> str:
    """Return a name for a replica that is the same on all ranks of its group."""
    import torch.distributed as dist

    names = {id(each): name for name, each in replica.model.named_parameters()}
    shape = [(names[id(each)], tuple(each.shape), str(each.dtype)) for each in replica.parameters]
    group = replica.group
    return _digest(f"{group.group_name} {dist.get_process_group_ranks(group)} {shape}")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
