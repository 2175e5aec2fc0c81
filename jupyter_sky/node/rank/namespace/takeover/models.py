"""Models of a rank that are changed as those of the notebook were changed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.node.rank.namespace.takeover import versions
from jupyter_sky.node.rank.namespace.takeover.optimizers import (
    CannotTakeOver,
    take_over_optimizer,
)
from jupyter_sky.serialization.changes.model_changes import (
    REQUIRES_GRAD,
    attributes_of,
    tensors_of,
)
from jupyter_sky.serialization.models import hooks, sharded
from jupyter_sky.serialization.models.torch_kinds import has_modules, is_optimizer, is_schedule


@dataclass(frozen=True)
class Taken:
    """What a rank has done to take over changes.

    Attributes
    ----------
    others
        What the rank has, by the identity of what it stands for in what was received: the modules,
        hooks and tensors of a model, or the optimizer.
    places
        Where something of what was received was put: dictionaries, each with a key.
    """

    others: dict[int, Any]
    places: list[tuple[dict[Any, Any], Any]] = field(default_factory=list)


def take_over(present: Any, received: Any, changes: Collection[str]) -> Taken:
    """Change a model or optimizer of a rank as that of the notebook was changed.

    Parameters
    ----------
    present
        The rank's; a model may be wrapped or sharded.
    received
        The notebook's.
    changes
        The names of what differs in it from what the rank was sent or gave.

    Raises
    ------
    CannotTakeOver
        When it is of another kind, or a change cannot be made on a rank; nothing was changed.
    """
    if is_optimizer(received) or is_schedule(received):
        return Taken(take_over_optimizer(present, received, changes))
    if not (has_modules(present) and has_modules(received)):
        raise CannotTakeOver("it is no model on this rank")
    sharded.find(present)  # has it let go of the whole
    pairs = list(_pairs(present, received))
    tensors = [
        (prefix + name, _own(mine, name), tensor)
        for prefix, mine, theirs in pairs
        for name, tensor in tensors_of(theirs)
    ]
    pieces = [_piece(*each) for each in tensors if each[0] in changes]
    for prefix, mine, theirs in pairs:
        for name in mine._parameters.keys() - dict(tensors_of(theirs)).keys():
            if prefix + name in changes:
                raise CannotTakeOver(f"{prefix}{name} was removed")
    for _, mine, theirs in pairs:
        if _kind(mine) is not _kind(theirs):
            versions.become(mine, type(theirs))
    for part, piece in pieces:
        _put(part, piece)
    for name, mine, theirs in tensors:
        if mine is not None and name + REQUIRES_GRAD in changes:
            mine.requires_grad_(theirs.requires_grad)
    parts = [*pairs, *tensors]
    places = []
    for prefix, mine, theirs in pairs:
        for name in mine._buffers.keys() - theirs._buffers.keys():
            if prefix + name in changes:
                del mine._buffers[name]
        places += _change(vars(mine), attributes_of(theirs), changes, prefix.__add__)
        for kind, others in hooks.of_module(theirs).items():
            own = vars(mine)[kind]
            places += _change(own, others, changes, functools.partial(hooks.name, prefix, kind))
            parts.append((prefix, own, others))
    for wrapper in _wrappers(present):
        wrapper.training = received.training
    return Taken({id(theirs): mine for _, mine, theirs in parts if mine is not None}, places)


def _change(
    own: dict[Any, Any],
    others: Mapping[Any, Any],
    changes: Collection[str],
    name_of: Callable[[Any], str],
) -> list[tuple[dict[Any, Any], Any]]:
    """Change a dictionary where ``changes`` has the name of a key, and return what is new in it."""
    changed = {key for key in {*own, *others} if name_of(key) in changes}
    for key in changed - others.keys():
        own.pop(key, None)
    own.update({key: each for key, each in others.items() if key in changed})
    return [(own, key) for key in changed & others.keys()]


def _pairs(mine: Any, theirs: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    mine, theirs = sharded.unwrapped(mine), sharded.unwrapped(theirs)
    if isinstance(theirs, sys.modules["torch"].jit.ScriptModule):
        raise CannotTakeOver(f"{prefix[:-1] or 'it'} is of TorchScript")
    if _kind(mine) is not _kind(theirs) and not versions.can_become(mine, type(theirs)):
        raise CannotTakeOver(f"{prefix[:-1] or 'it'} is of type {type(mine).__name__} on this rank")
    if mine._modules.keys() != theirs._modules.keys():
        raise CannotTakeOver(f"{prefix[:-1] or 'it'} has other modules on this rank")
    yield prefix, mine, theirs
    for name, child in theirs._modules.items():
        if child is not None:
            yield from _pairs(mine._modules[name], child, f"{prefix}{name}.")


def _kind(module: Any) -> type:
    kind = sharded.original_class(type(module))
    # Torch makes a class for each module of which it computes weights, as `weight_norm` does.
    return kind.__mro__[1] if kind.__module__ == "torch.nn.utils.parametrize" else kind


def _wrappers(model: Any) -> Iterator[Any]:
    """Yield what is around the modules of a model, such as DistributedDataParallel."""
    for module in model.modules():
        if sharded.unwrapped(module) is not module:
            yield module


def _own(module: Any, name: str) -> Any:
    """Return the tensor of a module under a name; ``None`` if it has none there any more."""
    found = module._parameters.get(name, module._buffers.get(name))
    return None if getattr(found, "_fsdp_flattened", False) else found


def _piece(name: str, mine: Any, theirs: Any) -> tuple[Any, Any]:
    """Return a rank's part of a tensor, and what is copied into it."""
    theirs = theirs.detach()
    if mine is None:
        raise CannotTakeOver(f"{name} is sharded on this rank, or is not there")
    if mine.shape != theirs.shape:
        raise CannotTakeOver(f"{name} is {tuple(mine.shape)} on this rank")
    if not hasattr(mine, "placements"):
        return mine, theirs
    if mine.dtype != theirs.dtype:
        raise CannotTakeOver(f"{name} is {mine.dtype} on this rank")
    distribute = sys.modules["torch.distributed.tensor"].distribute_tensor
    try:
        # Every rank has the whole, so each takes its own part, and none waits for another.
        whole = theirs.to(mine.device)
        part = distribute(whole, mine.device_mesh, mine.placements, src_data_rank=None)
    except Exception as error:
        raise CannotTakeOver(f"{name} is sharded on this rank") from error
    return mine.detach().to_local(), part.to_local()


def _put(mine: Any, piece: Any) -> None:
    if mine.dtype == piece.dtype:
        mine.detach().copy_(piece)
        return
    # As `model.half()` does it, so that an optimizer still refers to the same parameter.
    gradient, mine.grad = mine.grad, None
    mine.data = piece.to(mine.device)
    if gradient is not None:
        mine.grad = gradient.to(piece.dtype)
