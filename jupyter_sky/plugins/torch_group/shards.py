"""How far the optimizers of models are that are sharded over the ranks, as by FSDP.

Each rank makes the steps of its own shards. Where a run is cut off between those of two ranks, no
rank has what the other lacks: only a checkpoint helps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from jupyter_sky.serialization.models.instances import instances

_SHARDS = (
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed.fsdp._flat_param", "FlatParameter"),
)


def steps_taken() -> dict[str, list[float]]:
    """Return the steps that optimizers of sharded parameters have made, by what they optimize.

    Optimizers that do not count their steps are not known here.
    """
    kinds = tuple(_kinds_of_shards())
    if not kinds:
        return {}
    from torch.optim import Optimizer

    taken: dict[str, list[float]] = {}
    [optimizers] = instances((Optimizer,))
    for optimizer in optimizers:
        if "state" not in vars(optimizer):  # wrappers have the state of what they wrap
            continue
        sharded = [
            each
            for part in optimizer.param_groups
            for each in part["params"]
            if isinstance(each, kinds)
        ]
        steps = {float(optimizer.state.get(each, {}).get("step", -1)) for each in sharded} - {-1.0}
        if steps:
            shapes = [tuple(each.shape) for each in sharded]
            name = f"{type(optimizer).__qualname__} of {shapes}"
            taken[name] = sorted({*taken.get(name, ()), *steps})
    return taken


def _kinds_of_shards() -> Iterator[Any]:
    for module, name in _SHARDS:
        if module in sys.modules:
            yield getattr(sys.modules[module], name)
