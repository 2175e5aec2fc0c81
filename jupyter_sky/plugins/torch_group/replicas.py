"""Replicas of a model are made equal again, with what optimizers and schedulers know of it.

What ends a run may come before the optimizer's step on some ranks, and after it on others. As each
step adds the same gradient to all replicas, they would stay different from then on, without a word.

A replica is a model under DistributedDataParallel, or those shards of a model that several ranks
have, as under `fully_shard` with a mesh of two dimensions.

Ranks compare what they have before the next run of all of them; see `comparison`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

from jupyter_sky.plugins.torch_group.trained import Trained, find
from jupyter_sky.transport import present_run

_SOURCE = 0  # in the group of the model
_Signature = tuple[str, tuple[int, ...]]
"""An optimizer on all ranks: the name of its class, and the positions of its parameters."""


@dataclass(frozen=True)
class Replica:
    """What the ranks of a group have in common.

    Attributes
    ----------
    model
        A DistributedDataParallel, or a model that is sharded.
    group
        The group.
    parameters
        Its parameters; of those that are sharded, this rank's part is meant.
    """

    model: Any
    group: Any
    parameters: list[Any]


class _Sent(NamedTuple):
    """Stands for a tensor, or a rank's part of one, that follows."""

    shape: tuple[int, ...]
    dtype: Any
    is_part: bool


class _Known(NamedTuple):
    """What an optimizer knows, by parameter, and its schedulers, by the name of their class."""

    settings: list[dict[str, Any]]
    states: dict[int, dict[str, Any]]
    schedules: dict[str, dict[str, Any]]


def of_model(model: Any) -> list[Replica]:
    """Return what ranks have in common of a model; for each part, the group of those ranks."""
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        return [Replica(model, model.process_group, list(model.module.parameters()))]
    found: dict[Any, list[Any]] = {}
    for each in model.parameters():
        for dimension, placement in enumerate(getattr(each, "placements", ())):
            if placement.is_replicate():
                found.setdefault(each.device_mesh.get_group(dimension), []).append(each)
    return [Replica(model, group, parameters) for group, parameters in found.items()]


def make_equal_at_next_step(model: Any) -> None:
    """Give all ranks what the first one has, before the next step, as when a model is wrapped.

    What some ranks do alone, as an evaluation or a cell on one rank, leaves this to the next step.
    """
    if not waits_for_step(model):
        model.register_forward_pre_hook(_hook())


@functools.cache
def _hook() -> Any:
    import torch

    return torch.compiler.disable(_before_step)


def waits_for_step(model: Any) -> bool:
    """Return whether a model is to be made equal before its next step."""
    return any(hook is _hook() for hook in model._forward_pre_hooks.values())


def _before_step(model: Any, inputs: Any) -> None:
    import torch
    import torch.distributed as dist

    is_step = torch.is_grad_enabled() and getattr(model, "require_backward_grad_sync", True)
    found, here = of_model(model) if is_step else [], {*present_run.ranks()}
    if found and all(here.issuperset(dist.get_process_group_ranks(each.group)) for each in found):
        trained = find()
        for each in found:
            make_equal(each, trained)


def make_equal(replica: Replica, trained: Trained) -> None:
    """Give all ranks what the first one has; all of its group call this."""
    import torch.distributed as dist

    group, parameters = replica.group, replica.parameters
    source = dist.get_global_rank(group, _SOURCE)
    _send_parameters(replica, source)
    optimizers = _optimizers(parameters, trained)
    scaler = _scaler(trained)
    is_source = group.rank() == _SOURCE
    known = {}
    if is_source:
        for signature, optimizer in optimizers.items():
            with contextlib.suppress(Exception):  # of a class of the user's
                each = _known(optimizer, parameters, trained)
                pickle.dumps(each)  # an error while it is sent would leave the others waiting
                known[signature] = each
    box = [(known, scaler.state_dict() if scaler else {})] if is_source else [({}, {})]
    dist.broadcast_object_list(box, source, group)
    [(known, scaling)] = box
    for signature, each in known.items():
        own: Any = optimizers.get(signature)
        for position, state in each.states.items():
            parameter = parameters[position]
            for key, value in state.items():
                if isinstance(value, _Sent):
                    there = own.state[parameter][key] if is_source else None
                    state[key] = _send(value, there, parameter, source, group)
        if own is not None and not is_source:
            _learn(own, each, parameters, trained)
    if scaler and scaling and not is_source:
        scaler.load_state_dict(scaling)
    hooks = replica.model._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if hook is _hook()]:
        del hooks[key]


def _send_parameters(replica: Replica, source: int) -> None:
    import torch.distributed as dist
    from torch.distributed.utils import _sync_module_states
    from torch.nn.parallel import DistributedDataParallel

    model = replica.model
    if isinstance(model, DistributedDataParallel):
        size, ignored = model.broadcast_bucket_size, model.parameters_to_ignore
        _sync_module_states(model.module, replica.group, size, _SOURCE, ignored)
        return
    for each in replica.parameters:
        part = _own_part(each).detach()
        whole = part.contiguous()
        dist.broadcast(whole, source, replica.group)
        part.copy_(whole)


def _send(sent: _Sent, value: Any, parameter: Any, source: int, group: Any) -> Any:
    """Return a tensor of an optimizer's on all ranks; ``value`` is that of the source."""
    import torch
    import torch.distributed as dist

    if value is None:
        part = torch.empty(sent.shape, dtype=sent.dtype, device=parameter.device)
    else:
        part = _own_part(value).contiguous()
    dist.broadcast(part, source, group)
    if not sent.is_part:
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _own_part(tensor: Any) -> Any:
    """Return this rank's part of a tensor, which is the tensor itself unless it is sharded."""
    return getattr(tensor, "_local_tensor", tensor)


def drop_unfinished_step(replica: Replica, trained: Trained) -> None:
    """Let the next step of a model begin as the first one; all of the group call this."""
    if reducer := vars(replica.model).get("reducer"):
        reducer._reset_state()
    for each in replica.parameters:
        each.grad = None  # where the rank had made the step, it would count twice
    if scaler := _scaler(trained):
        scaler._per_optimizer_states.clear()


def fingerprint(replica: Replica, trained: Trained) -> str:
    """Return what is the same on all ranks as long as they can train on with equal replicas."""
    try:
        if "reducer" in vars(replica.model):
            replica.model._check_reducer_finalized()
        known = _all_known(replica, trained)
    except Exception as problem:  # a step was cut off in its backward pass, or what a user has made
        known = [replica.group.rank(), str(problem)]
    return hashlib.blake2b(repr(known).encode(), digest_size=16).hexdigest()


def _all_known(replica: Replica, trained: Trained) -> list[Any]:
    parameters = replica.parameters
    optimizers = _optimizers(parameters, trained)
    scaler = _scaler(trained)
    known: list[Any] = [waits_for_step(replica.model), scaler.state_dict() if scaler else {}]
    known += map(_summed, parameters)
    for signature, optimizer in sorted(optimizers.items()):
        states = [
            {key: _summed(value) for key, value in optimizer.state.get(each, {}).items()}
            for each in parameters
        ]
        known += (
            signature,
            _settings(optimizer),
            states,
            sorted(_schedules(optimizer, trained).items()),
        )
    return known


def _summed(value: Any) -> Any:
    """Return the sum of a tensor's bits, read as integers, or the value itself."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    own = _own_part(value)
    plain = torch.view_as_real(own) if own.is_complex() else own
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = plain.detach().contiguous().reshape(-1).view(integers[plain.element_size()])
    return int(bits.sum(dtype=torch.int64))


def _optimizers(parameters: list[Any], trained: Trained) -> dict[_Signature, Any]:
    """Return the optimizers of these parameters, without those that look alike."""
    positions = {id(each): n for n, each in enumerate(parameters)}
    found: dict[_Signature, list[Any]] = {}
    for each in trained.optimizers:
        # It may have those of other models as well, which are made equal with these.
        given = [id(one) for part in each.param_groups for one in part["params"]]
        if own := tuple(positions[one] for one in given if one in positions):
            found.setdefault((type(each).__qualname__, own), []).append(each)
    return {signature: alike[0] for signature, alike in found.items() if len(alike) == 1}


def _scaler(trained: Trained) -> Any:
    """Return the GradScaler that there is, if it is the only one."""
    return trained.scalers[0] if len(trained.scalers) == 1 else None


def _known(optimizer: Any, parameters: list[Any], trained: Trained) -> _Known:
    states = {
        position: {key: _described(value, each) for key, value in optimizer.state[each].items()}
        for position, each in enumerate(parameters)
        if each in optimizer.state
    }
    return _Known(_settings(optimizer), states, _schedules(optimizer, trained))


def _settings(optimizer: Any) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in part.items() if key != "params"}
        for part in optimizer.param_groups
    ]


def _schedules(optimizer: Any, trained: Trained) -> dict[str, dict[str, Any]]:
    return {name: each.state_dict() for name, each in _schedulers(optimizer, trained).items()}


def _described(value: Any, parameter: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.dim() and value.device == parameter.device:
        part = _own_part(value)
        return _Sent(tuple(part.shape), value.dtype, part is not value)
    return value


def _schedulers(optimizer: Any, trained: Trained) -> dict[str, Any]:
    of_it = [each for each in trained.schedulers if vars(each).get("optimizer") is optimizer]
    # Those that are a part of another one, as in a SequentialLR, are in its state.
    parts = {id(one) for each in of_it for one in vars(each).get("_schedulers", ())}
    found: dict[str, list[Any]] = {}
    for each in of_it:
        if id(each) not in parts:
            found.setdefault(type(each).__qualname__, []).append(each)
    return {name: alike[0] for name, alike in found.items() if len(alike) == 1}


def _learn(optimizer: Any, known: _Known, parameters: list[Any], trained: Trained) -> None:
    for part, settings in zip(optimizer.param_groups, known.settings, strict=True):
        part.update(settings)
    for parameter in parameters:
        optimizer.state.pop(parameter, None)
    for position, state in known.states.items():
        optimizer.state[parameters[position]] = state
    schedulers = _schedulers(optimizer, trained)
    for name in schedulers.keys() & known.schedules.keys():
        schedulers[name].load_state_dict(known.schedules[name])
