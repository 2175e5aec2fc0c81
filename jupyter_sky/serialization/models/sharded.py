"""Sharded models (FSDP, tensor parallelism): finding sharded parts, and pickling them whole.

A sharded tensor cannot leave its rank, which holds only a part, tied to a mesh of ranks. So the
ranks gather whole tensors first (`jupyter_sky.node.rank.namespace.gathering`). This module finds
what they have to gather (`find`), and puts the result in the place of the parts in a pickle
(`reducer`). There, modules are as they were before torch sharded them: without its hooks, classes
and wrappers.

torch is never imported here: unless it is loaded, nothing is sharded.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.serialization.models import prepared

_MAX_PARTS = 100_000

_WRAPPED = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params", "_distribute_module_applied")
_COMPOSABLE = "__composable_api_state_key"


class CannotGather(TypeError):
    """Part of a sharded object was not gathered."""


@dataclass(frozen=True)
class Sharded:
    """The sharded parts of a value, in an order that is the same on all ranks.

    Attributes
    ----------
    tensors
        Its `DTensor` objects.
    units
        Its modules that `FullyShardedDataParallel` wraps, outer ones first.
    """

    tensors: tuple[Any, ...] = ()
    units: tuple[Any, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tensors or self.units)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks over which it is sharded."""
        from torch.distributed import get_process_group_ranks

        meshes = {id(each.device_mesh): each.device_mesh for each in self.tensors}
        ranks = {rank for mesh in meshes.values() for rank in mesh.mesh.flatten().tolist()}
        for unit in self.units:
            ranks.update(get_process_group_ranks(unit.process_group))
        return frozenset(ranks)

    @property
    def size(self) -> int:
        """Total bytes once gathered."""
        sizes = [each.numel() * each.element_size() for each in self.tensors]
        for flat in self._flat_parameters():
            sizes.append(flat._unpadded_unsharded_size.numel() * flat.element_size())
        return sum(sizes)

    def plan(self) -> list[str]:
        """Return the steps of gathering, which are equal on all ranks that can gather together."""
        steps = [f"{tuple(each.shape)} {each.dtype} {each.placements}" for each in self.tensors]
        units = [
            f"{each._fqns} {each._unpadded_unsharded_size}" for each in self._flat_parameters()
        ]
        return [*steps, *units]

    def _flat_parameters(self) -> list[Any]:
        return [parameter for parameter in map(flat_parameter, self.units) if parameter is not None]


@dataclass(frozen=True)
class WholeParameter:
    """A gathered parameter; modules that shared it have the same one."""

    tensor: Any
    requires_grad: bool

    def __reduce__(self) -> Any:
        return _parameter, (self.tensor, self.requires_grad)


@dataclass(frozen=True)
class Whole:
    """Whole tensors in main memory, for the parts that a rank has.

    Attributes
    ----------
    tensors
        For each `DTensor`, by its identity.
    parameters
        For each module whose parameters `FullyShardedDataParallel` has taken, by its identity and
        the parameters' names.
    """

    tensors: dict[int, Any] = field(default_factory=dict)
    parameters: dict[int, dict[str, WholeParameter]] = field(default_factory=dict)


NOTHING = Whole()


# Finding sharded parts


def find(value: Any) -> Sharded:
    """Return the sharded parts of a value, looking into models, optimizers, containers and objects.

    This gathers nothing, but models under FSDP2 free the parameters that they have gathered.
    """
    if not _is_loaded():
        return Sharded()
    kinds = _Kinds()
    tensors, units = [], []
    seen: set[int] = set()
    waiting = deque([value])
    while waiting and len(seen) < _MAX_PARTS:
        part = waiting.popleft()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, kinds.fsdp2):
            part.reshard()
        if isinstance(part, kinds.tensor):
            tensors.append(part)
        elif isinstance(part, kinds.fsdp1):
            units.append(part)
        waiting.extend(_parts(part))
    return Sharded(tuple(tensors), tuple(units))


def _parts(value: Any) -> Iterable[Any]:
    torch = sys.modules["torch"]
    if isinstance(value, torch.nn.Module):
        inner = (value._parameters, value._buffers, value._modules)
        return [part for parts in inner for part in parts.values() if part is not None]
    if isinstance(value, torch.optim.Optimizer):
        return [value.param_groups, *value.state.values()]
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return value
    if type(value).__module__ == "__main__" and hasattr(value, "__dict__"):
        return list(vars(value).values())
    return ()


def _is_loaded() -> bool:
    """Return whether torch has loaded a module that shards."""
    return "torch.distributed.tensor" in sys.modules or "torch.distributed.fsdp" in sys.modules


class _Kinds:
    """The sharding types of torch; empty tuples for those that are not loaded."""

    def __init__(self) -> None:
        fsdp = sys.modules.get("torch.distributed.fsdp")
        self.tensor: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
        self.fsdp1: Any = getattr(fsdp, "FullyShardedDataParallel", ())
        self.fsdp2: Any = getattr(fsdp, "FSDPModule", ())


def flat_parameter(unit: Any) -> Any:
    """Return the flat parameter of a module under FSDP1; ``None`` if it has none."""
    handle = getattr(unit, "_handle", None)
    return handle and handle.flat_param


# Pickling it whole


def reducer(whole: Whole = NOTHING) -> Callable[[Any], Any] | None:
    """Return a function that reduces sharded tensors and modules to whole ones.

    Parameters
    ----------
    whole
        The gathered tensors. A part that is not among them raises `CannotGather`.

    Returns
    -------
    callable or None
        Returns what ``__reduce__`` would, or ``NotImplemented`` for objects that are not sharded.
        ``None`` if torch has not loaded a module that shards.
    """
    if not _is_loaded():
        return None
    torch, kinds = sys.modules["torch"], _Kinds()

    def reduce(obj: Any) -> Any:
        if isinstance(obj, kinds.tensor):
            return _reduce_tensor(obj, whole)
        if isinstance(obj, kinds.fsdp1):
            return _itself, (obj.module,)
        if isinstance(obj, torch.nn.Module):
            return _reduce_module(obj, whole)
        if isinstance(obj, torch.nn.Parameter) and getattr(obj, "_fsdp_flattened", False):
            raise CannotGather("a piece of a model under FullyShardedDataParallel")
        return NotImplemented

    return reduce


def _reduce_tensor(tensor: Any, whole: Whole) -> Any:
    torch = sys.modules["torch"]
    if (found := whole.tensors.get(id(tensor))) is None:
        raise CannotGather("one rank's part of a sharded tensor")
    if isinstance(tensor, torch.nn.Parameter):
        return _parameter, (found, tensor.requires_grad)
    return _itself, (found,)


def is_touched(module: Any) -> bool:
    """Return whether torch has left marks in a module, or made it a class, to shard it."""
    state = vars(module)
    return (
        any(name in state for name in _MARKS)
        or any(map(_is_composable, state))
        or bool(_hooks_of_torch(state))
        or original_class(type(module)) is not type(module)
    )


def _reduce_module(module: Any, whole: Whole) -> Any:
    """Reduce a module to what it was before it was sharded, and prepared for mixed precision."""
    taken = whole.parameters.get(id(module), {})
    if not (taken or is_touched(module)):
        return NotImplemented
    removed, kind = _hooks_of_torch(vars(module)), original_class(type(module))
    match module.__reduce_ex__(5):
        case (_, (made,), dict() as reduced, *_) if made is type(module):
            bare = _bare_state(prepared.unprepared(kind, reduced), removed, taken)
            return _bare_module, (kind,), bare
    return NotImplemented


def _bare_module(kind: type) -> Any:
    return object.__new__(kind)


def original_class(kind: type) -> type:
    """Return the class from which FSDP2 has derived its own."""
    fsdp2 = _Kinds().fsdp2
    if fsdp2 and issubclass(kind, fsdp2):
        original: type = kind.__mro__[getattr(kind, "_orig_cls_mro_index", 2)]
        return original
    return kind


def _bare_state(
    state: dict[str, Any], removed: frozenset[int], taken: Mapping[str, WholeParameter]
) -> dict[str, Any]:
    bare = {
        name: _without(value, removed) if "_hooks" in name else value
        for name, value in state.items()
        if name not in _MARKS and name not in taken and not _is_composable(name)
    }
    parameters = {
        name: value for name, value in state["_parameters"].items() if name != "_flat_param"
    }
    bare["_parameters"] = {**parameters, **taken}
    return bare


def _is_composable(name: str) -> bool:
    return name.startswith(_COMPOSABLE)


def _hooks_of_torch(state: Mapping[str, Any]) -> frozenset[int]:
    """Return the ids, which are unique, of the hooks by which torch shards a module."""
    return frozenset(
        number
        for name, hooks in state.items()
        if name.endswith("_hooks") and isinstance(hooks, Mapping)
        for number, hook in hooks.items()
        if _module_of(hook).startswith("torch.distributed.")
    )


def _module_of(hook: Any) -> str:
    return getattr(getattr(hook, "func", hook), "__module__", None) or ""


def _without(hooks: Any, removed: frozenset[int]) -> Any:
    if not isinstance(hooks, dict) or not removed:
        return hooks
    return type(hooks)((number, hook) for number, hook in hooks.items() if number not in removed)


def _parameter(tensor: Any, requires_grad: bool) -> Any:
    import torch

    return torch.nn.Parameter(tensor, requires_grad)


def _itself(obj: Any) -> Any:
    return obj


# Its state dictionary


def state_dict(module: Any, whole: Whole) -> dict[str, Any]:
    """Return the state dictionary of a model, gathered and without wrappers.

    Parameters
    ----------
    module
        The model; it need not be sharded, and may be wrapped for DDP.
    whole
        Its gathered tensors.
    """
    return dict(_entries(module, whole, ""))


def _entries(module: Any, whole: Whole, prefix: str) -> Iterator[tuple[str, Any]]:
    module = unwrapped(module)
    own: dict[str, Any] = {}
    module._save_to_state_dict(own, prefix, keep_vars=True)
    taken = whole.parameters.get(id(module), {})
    own.pop(f"{prefix}_flat_param", None)
    own.update({prefix + name: found.tensor for name, found in taken.items()})
    for name, value in own.items():
        found = whole.tensors.get(id(value), value)
        yield name, found.detach() if hasattr(found, "detach") else found
    for name, child in module._modules.items():
        if child is not None:
            yield from _entries(child, whole, f"{prefix}{name}.")


def unwrapped(module: Any) -> Any:
    """Return the module that torch has wrapped, or the module itself."""
    torch = sys.modules["torch"]
    while True:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
            continue
        names = [name for name in _WRAPPED if name in module._modules]
        if not names:
            return module
        module = module._modules[names[0]]
