"""Replicas of a model are made equal again, with what optimizers and schedulers know of it.

What ends a run may come before the optimizer's step on some ranks, and after it on others. As each
step adds the same gradient to all replicas, they would stay different from then on, without a word.

Ranks compare what they have before the next run of all of them; see `comparison`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import pickle
from typing import Any, NamedTuple

from jupyter_sky.serialization.models.instances import instances
from jupyter_sky.transport import present_run

_SOURCE = 0  # in the group of the model
_Signature = tuple[str, tuple[int, ...]]
"""An optimizer on all ranks: the name of its class, and the positions of its parameters."""


class _Sent(NamedTuple):
    """Stands for a tensor that follows."""

    shape: tuple[int, ...]
    dtype: Any


class _Known(NamedTuple):
    """What an optimizer knows, by parameter, and its schedulers, by the name of their class."""

    settings: list[dict[str, Any]]
    states: dict[int, dict[str, Any]]
    schedules: dict[str, dict[str, Any]]


def make_equal_at_next_step(model: Any) -> None:
    """Give all ranks what the first one has, before the next step, as when a model is wrapped.

    What some ranks do alone, as an evaluation or a cell on one rank, leaves this to the next step.

    Parameters
    ----------
    model
        A DistributedDataParallel.
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

    is_step = torch.is_grad_enabled() and model.require_backward_grad_sync
    if is_step and len(present_run.ranks()) >= model.process_group.size():
        make_equal(model)


def make_equal(model: Any) -> None:
    """Give all ranks what the first one has; all call this for the same model.

    Parameters
    ----------
    model
        A DistributedDataParallel.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.utils import _sync_module_states

    group, ignored = model.process_group, model.parameters_to_ignore
    size = model.broadcast_bucket_size
    _sync_module_states(model.module, group, size, _SOURCE, ignored)
    source = dist.get_global_rank(group, _SOURCE)
    parameters = list(model.module.parameters())
    for each in parameters:
        each.grad = None  # of a step that some ranks have made: it would count twice
    optimizers = _optimizers({id(each): n for n, each in enumerate(parameters)})
    scaler = _scaler()
    is_source = group.rank() == _SOURCE
    source = dist.get_global_rank(group, _SOURCE)
    known = {}
    if is_source:
        for signature, optimizer in optimizers.items():
            with contextlib.suppress(Exception):  # of a class of the user's
                each = _known(optimizer, parameters)
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
                    tensor = (
                        own.state[parameter][key].contiguous()
                        if is_source
                        else torch.empty(value.shape, dtype=value.dtype, device=parameter.device)
                    )
                    dist.broadcast(tensor, source, group)
                    state[key] = tensor
        if own is not None and not is_source:
            _learn(own, each, parameters)
    if scaler:
        scaler._per_optimizer_states.clear()  # what it knows of the step that was cut off
        if scaling and not is_source:
            scaler.load_state_dict(scaling)
    hooks = model._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if hook is _hook()]:
        del hooks[key]


def drop_unfinished_step(model: Any) -> None:
    """Let the next step begin as the first one; all ranks call this for the same model.

    Parameters
    ----------
    model
        A DistributedDataParallel.
    """
    if reducer := vars(model).get("reducer"):
        reducer._reset_state()


def fingerprint(model: Any) -> str:
    """Return what is the same on all ranks as long as they can train on with equal replicas.

    Parameters
    ----------
    model
        A DistributedDataParallel.
    """
    try:
        model._check_reducer_finalized()
        known = _all_known(model)
    except Exception as problem:  # a step was cut off in its backward pass, or what a user has made
        known = [model.process_group.rank(), str(problem)]
    return hashlib.blake2b(repr(known).encode(), digest_size=16).hexdigest()


def _all_known(model: Any) -> list[Any]:
    parameters = list(model.module.parameters())
    optimizers = _optimizers({id(each): n for n, each in enumerate(parameters)})
    scaler = _scaler()
    known: list[Any] = [waits_for_step(model), scaler.state_dict() if scaler else {}]
    known += map(_summed, parameters)
    for signature, optimizer in sorted(optimizers.items()):
        states = [
            {key: _summed(value) for key, value in optimizer.state.get(each, {}).items()}
            for each in parameters
        ]
        known += signature, _settings(optimizer), states, sorted(_schedules(optimizer).items())
    return known


def _summed(value: Any) -> Any:
    """Return the sum of a tensor's bits, read as integers, or the value itself."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    own = getattr(value, "_local_tensor", value)  # of a DTensor
    plain = torch.view_as_real(own) if own.is_complex() else own
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = plain.detach().contiguous().reshape(-1).view(integers[plain.element_size()])
    return int(bits.sum(dtype=torch.int64))


def _optimizers(positions: dict[int, int]) -> dict[_Signature, Any]:
    """Return the optimizers of these parameters, without those that look alike."""
    from torch.optim import Optimizer

    gc.collect()  # those of earlier cells may only refer to themselves
    found: dict[_Signature, list[Any]] = {}
    [optimizers] = instances((Optimizer,))
    for each in optimizers:
        # Wrappers have the state of what they wrap.
        if "state" not in vars(each):
            continue
        # It may have those of other models as well, which are made equal with these.
        given = [id(one) for part in each.param_groups for one in part["params"]]
        if own := tuple(positions[one] for one in given if one in positions):
            found.setdefault((type(each).__qualname__, own), []).append(each)
    return {signature: alike[0] for signature, alike in found.items() if len(alike) == 1}


def _scaler() -> Any:
    """Return the GradScaler that there is, if it is the only one that does anything."""
    from torch.amp import GradScaler

    [scalers] = instances((GradScaler,))
    scaling = [each for each in scalers if each.is_enabled()]
    return scaling[0] if len(scaling) == 1 else None


def _known(optimizer: Any, parameters: list[Any]) -> _Known:
    states = {
        position: {key: _described(value, each) for key, value in optimizer.state[each].items()}
        for position, each in enumerate(parameters)
        if each in optimizer.state
    }
    return _Known(_settings(optimizer), states, _schedules(optimizer))


def _settings(optimizer: Any) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in part.items() if key != "params"}
        for part in optimizer.param_groups
    ]


def _schedules(optimizer: Any) -> dict[str, dict[str, Any]]:
    return {name: each.state_dict() for name, each in _schedulers(optimizer).items()}


def _described(value: Any, parameter: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.dim() and value.device == parameter.device:
        return _Sent(tuple(value.shape), value.dtype)
    return value


def _schedulers(optimizer: Any) -> dict[str, Any]:
    from torch.optim.lr_scheduler import LRScheduler

    [schedulers] = instances((LRScheduler,))
    of_it = [each for each in schedulers if vars(each).get("optimizer") is optimizer]
    # Those that are a part of another one, as in a SequentialLR, are in its state.
    parts = {id(one) for each in of_it for one in vars(each).get("_schedulers", ())}
    found: dict[str, list[Any]] = {}
    for each in of_it:
        if id(each) not in parts:
            found.setdefault(type(each).__qualname__, []).append(each)
    return {name: alike[0] for name, alike in found.items() if len(alike) == 1}


def _learn(optimizer: Any, known: _Known, parameters: list[Any]) -> None:
    for part, settings in zip(optimizer.param_groups, known.settings, strict=True):
        part.update(settings)
    for parameter in parameters:
        optimizer.state.pop(parameter, None)
    for position, state in known.states.items():
        optimizer.state[parameters[position]] = state
    schedulers = _schedulers(optimizer)
    for name in schedulers.keys() & known.schedules.keys():
        schedulers[name].load_state_dict(known.schedules[name])
