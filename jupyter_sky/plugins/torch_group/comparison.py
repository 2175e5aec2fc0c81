"""Ranks find out whether their replicas of models still are equal.

A run may be cut off while no rank is in a collective, and yet on some ranks before the optimizer's
step, and on others after it. Before the next run of all ranks, each counts in the group's store
those that have what it has. That is not a collective: it disturbs none of the user's, and a rank
that does not come, as it has left the group, only costs the others some time.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections import defaultdict
from typing import Any

from jupyter_sky.plugins.torch_group.replicas import fingerprint, make_equal_at_next_step
from jupyter_sky.plugins.torch_group.store_wait import wait_for_keys
from jupyter_sky.serialization.models.instances import instances
from jupyter_sky.transport import present_run

_PATIENCE = 10.0  # seconds, for ranks that have not come


def compare_replicas() -> None:
    """Have replicas made equal at their next step if they differ; all ranks call this together."""
    import torch.distributed as dist

    store = present_run.group_store()
    if store is None or dist.get_world_size() < 2:
        return
    run = present_run.identity()
    found: dict[str, list[Any]] = defaultdict(list)
    counters = {}
    for model in _models():
        with contextlib.suppress(Exception):  # what the user has made of it
            found[_name(model)].append((fingerprint(model), model))
    try:
        for name, alike in found.items():
            counters[name] = f"{run}: {name} has {sorted(each for each, _ in alike)}"
            store.add(counters[name], 1)
        if store.add(f"{run}: ranks", 1) == dist.get_world_size():
            store.set(f"{run}: all", "")
        wait_for_keys(store, [f"{run}: all"], _PATIENCE)
        for name, alike in found.items():
            for _, model in alike:
                if store.add(counters[name], 0) < model.process_group.size():
                    make_equal_at_next_step(model)
    except dist.DistError:  # the head is lost: the group will be formed again
        return


def _models() -> list[Any]:
    from torch.nn.parallel import DistributedDataParallel

    [models] = instances((DistributedDataParallel,))
    if models:
        gc.collect()  # those of earlier cells may only refer to themselves
        [models] = instances((DistributedDataParallel,))
    return models


def _name(model: Any) -> str:
    """Return a name for a model that is the same on all ranks of its group."""
    shape = [
        (name, tuple(each.shape), str(each.dtype)) for name, each in model.module.named_parameters()
    ]
    digest = hashlib.blake2b(repr(shape).encode(), digest_size=16).hexdigest()
    return f"{model.process_group.group_name} {digest}"
