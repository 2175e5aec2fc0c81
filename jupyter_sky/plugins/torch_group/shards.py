"""How far the optimizers of models are that are sharded over the ranks, as by FSDP.

Each rank makes the steps of its own shards. Where a run is cut off between those of two ranks, no
rank has what the other lacks: only a checkpoint helps.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_sky.plugins.torch_group.trained import Trained


def steps_taken(trained: Trained) -> dict[str, list[float]]:
    """Return the steps that optimizers of sharded parameters have made, by what they optimize.

    Optimizers that do not count their steps are not known here.
    """
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    of_fsdp1 = _shapes_in_fsdp1(trained.of_fsdp1)
    taken: dict[str, list[float]] = {}
    for optimizer in trained.optimizers:
        shapes: list[Any] = []
        steps: set[float] = set()
        for parameter in (each for part in optimizer.param_groups for each in part["params"]):
            if id(parameter) in of_fsdp1:
                shapes.append(of_fsdp1[id(parameter)])
            elif tensors and isinstance(parameter, tensors.DTensor):
                if not _is_first_replica(parameter):
                    continue  # this rank gets what the first one has
                # Other ranks may train another model that looks alike.
                shapes.append((*parameter.shape, parameter.device_mesh.mesh.tolist()))
            else:
                continue
            if (step := optimizer.state.get(parameter, {}).get("step")) is not None:
                steps.add(float(step))
        if steps:
            name = f"{type(optimizer).__qualname__} of {shapes}"
            taken[name] = sorted({*taken.get(name, ()), *steps})
    return taken


def _is_first_replica(parameter: Any) -> bool:
    """Return whether no rank before this one has the same part of a parameter."""
    places = zip(parameter.placements, parameter.device_mesh.get_coordinate() or (), strict=False)
    return not any(place for placement, place in places if placement.is_replicate())


def _shapes_in_fsdp1(models: list[Any]) -> dict[int, tuple[int, ...]]:
    """Return the whole shapes of parameters under FSDP1, flat or as the model has them, by id."""
    shapes = {}
    for flat in (model._handle.flat_param for model in models if model._handle):
        shapes[id(flat)] = tuple(flat.shape)
        # It keeps the model's own parameters only with `use_orig_params`.
        for parameter, shape in zip(flat._params or (), flat._shapes, strict=False):
            shapes[id(parameter)] = tuple(shape)
    return shapes
