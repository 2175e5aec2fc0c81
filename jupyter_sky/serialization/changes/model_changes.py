"""Models and optimizers that the notebook changed in place: what changed is changed on the ranks.

A rank's optimizer, its DistributedDataParallel and its shards refer to the parameters that are
there. Another model under the same name would leave them behind, and they would train what nobody
uses any more. So a model that ranks have, and that is still the same object in the notebook, is not
replaced. The notebook compares what is in it with what was in it when the ranks got it or gave it
(`contents`), and a rank takes over what differs (`take_over`): ``model.eval()`` changes a mode, and
leaves alone what was trained since.

The same holds for models in another value, like a trainer. If nothing else of that was changed in
the notebook, the rank's stays, with what a rank has done to it.

torch is never imported here: where it is not loaded, nothing is a model.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.changes import writes
from jupyter_sky.serialization.models import hooks, optimizers, sharded
from jupyter_sky.serialization.models.optimizers import CannotTakeOver

KINDS = (sharded.has_modules, optimizers.is_optimizer, optimizers.is_schedule)
"""What tells a model, an optimizer and a schedule; each may refer to those before it."""

REQUIRES_GRAD = " requires_grad"


@dataclass(frozen=True)
class KnownModel:
    """A model or optimizer of the notebook, and what was in it when ranks had the same.

    Attributes
    ----------
    model
        The model, or what `optimizers` is about.
    contents
        What was in it (`contents`).
    """

    model: weakref.ref[Any]
    contents: Mapping[str, str]


@dataclass(frozen=True)
class HeldModels:
    """The models and optimizers of a value, which may be one itself.

    Attributes
    ----------
    models
        They, by identity, but for those that are parts of others.
    rest
        The digest of what else is in the value; ``None`` if it is a model or optimizer itself.
    """

    models: Mapping[int, KnownModel]
    rest: str | None


# In the notebook


def changes_of(
    values: Iterable[tuple[str, HeldModels | None, HeldModels | None]],
    numbers: Mapping[int, int],
    whole: Collection[str] = (),
) -> dict[str, list[str]]:
    """Return what differs in values that ranks have, where only models were changed.

    Parameters
    ----------
    values
        Names, with the models that a rank has under them and those that the notebook has.
    numbers
        Numbers of models, by identity.
    whole
        Names of which everything counts: the rank has to have what the notebook has.

    Returns
    -------
    dict
        For each model that is the same object as that of the ranks, the names of the parts that
        differ. Its key is its own name, or the name of the value that it is in, with its number
        (``"trainer 17"``). A value with models that has not changed otherwise has no such parts.
    """
    found: dict[str, list[str]] = {}
    seen: set[int] = set()
    both = [(name, former, now) for name, former, now in values if former and now]
    for name, former, now in sorted(both, key=lambda each: each[2].rest is not None):
        same = {
            identity: (former.models[identity], model)
            for identity, model in now.models.items()
            if identity in former.models and former.models[identity].model() is model.model()
        }
        for identity in same.keys() & numbers.keys() - seen:
            key = name if now.rest is None else f"{name} {numbers[identity]}"
            found[key] = _differing(*same[identity], is_whole=name in whole)
        seen |= same.keys()
        is_alike = now.rest == former.rest is not None and len(same) == len(now.models)
        if is_alike and name not in whole:
            found[name] = []
    return found


def _differing(former: KnownModel, now: KnownModel, *, is_whole: bool) -> list[str]:
    return [
        part
        for part in {**former.contents, **now.contents}  # also what was removed
        if former.contents.get(part) != now.contents.get(part)
        or (is_whole and part not in optimizers.MADE_FOR)
    ]


def held(
    value: Any, shared: Mapping[int, tuple[int, Any]], digests: dict[tuple[int, int], str]
) -> HeldModels | None:
    """Return the models and optimizers of a value; ``None`` if it has none.

    Parameters
    ----------
    value
        Any value.
    shared
        The mutable objects in it (`pickling.Pickled.shared`).
    digests
        Digests of memory (see `blobs.pack`); new ones are added.
    """
    if "torch" not in sys.modules:
        return None
    if is_model(value):
        model = known(value, digests)
        return HeldModels({id(value): model}, None) if model else None
    by_kind = {type(each): each for _, each in shared.values()}  # of which there are few
    kinds = {kind for kind, each in by_kind.items() if is_model(each)}
    objects = [each for _, each in shared.values() if kinds and type(each) in kinds]
    parts = {id(part) for each in filter(sharded.has_modules, objects) for part in each.children()}
    models = {id(each): known(each, digests) for each in objects if id(each) not in parts}
    found = {identity: model for identity, model in models.items() if model}
    if not found:
        return None
    pickled = pickling.dump_linked([value], {identity: identity for identity in found})
    return HeldModels(found, writes.digest(pickled, digests))


def is_model(value: Any) -> bool:
    """Return whether a value is a model, an optimizer or a schedule."""
    return any(is_kind(value) for is_kind in KINDS)


def known(value: Any, digests: dict[tuple[int, int], str]) -> KnownModel | None:
    """Return a model or optimizer with what is in it; ``None`` for others, or if that is unknown.

    ``digests`` are those of memory (see `blobs.pack`).
    """

    def digest(part: Any) -> str:
        is_tensor = isinstance(part, sys.modules["torch"].Tensor)
        return _digest_of_tensor(part, digests) if is_tensor else _digest_of_attribute(part)

    with suppress(Exception):  # a parameter without a shape yet, a sparse buffer
        if sharded.has_modules(value):
            return KnownModel(weakref.ref(value), contents(value, digests))
        if optimizers.is_optimizer(value) or optimizers.is_schedule(value):
            return KnownModel(weakref.ref(value), optimizers.contents(value, digest))
    return None


def contents(model: Any, digests: dict[tuple[int, int], str]) -> dict[str, str]:
    """Return a digest of everything in a model: tensors, attributes and hooks of its modules.

    Parameters
    ----------
    model
        The model.
    digests
        Digests of memory (see `blobs.pack`); new ones are added.

    Returns
    -------
    dict
        By name, such as ``layers.0.weight`` and ``layers.0.training``.
    """
    found = {}
    for prefix, module in modules_of(model):
        for name, tensor in _tensors(module):
            found[prefix + name] = _digest_of_tensor(tensor, digests)
            found[prefix + name + REQUIRES_GRAD] = str(tensor.requires_grad)
        for name, value in _attributes(module).items():
            with suppress(Exception):  # what cannot be pickled is not compared
                found[prefix + name] = _digest_of_attribute(value)
        for kind, numbered in hooks.of_module(module).items():
            # No other hook gets the same number.
            found.update({hooks.name(prefix, kind, number): "" for number in numbered})
    return found


def modules_of(model: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the modules of a model, each with what the names of its parts begin with."""
    model = sharded.unwrapped(model)
    yield prefix, model
    for name, child in model._modules.items():
        if child is not None:
            yield from modules_of(child, f"{prefix}{name}.")


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    for named in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in named.items() if tensor is not None)


def _attributes(module: Any) -> dict[str, Any]:
    """Return what is in a module besides what torch keeps in every one of them."""
    own = _kept_in_every_module()
    return {name: value for name, value in vars(module).items() if name not in own}


@functools.cache
def _kept_in_every_module() -> frozenset[str]:
    every = vars(sys.modules["torch"].nn.Module()).keys()
    return frozenset(every - {"training", "_is_full_backward_hook"})


def _digest_of_tensor(tensor: Any, digests: dict[tuple[int, int], str]) -> str:
    torch = sys.modules["torch"]
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    is_copy = flat.data_ptr() != tensor.data_ptr()  # whose address is that of others, later
    data = flat.view(torch.uint8).numpy()
    digest = blobs.digest(data) if is_copy else blobs.known_digest(data, digests)
    return f"{tensor.dtype} {tuple(tensor.shape)} {digest} {writes.of_tensor(tensor)}"


def _digest_of_attribute(value: Any) -> str:
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    return writes.digest(pickling.dump(value, without_caches=True), {})


# On a rank


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
    if optimizers.is_optimizer(received) or optimizers.is_schedule(received):
        return Taken(optimizers.take_over(present, received, changes))
    if not (sharded.has_modules(present) and sharded.has_modules(received)):
        raise CannotTakeOver("it is no model on this rank")
    sharded.find(present)  # has it let go of the whole
    pairs = list(_pairs(present, received))
    tensors = [
        (prefix + name, _own(mine, name), tensor)
        for prefix, mine, theirs in pairs
        for name, tensor in _tensors(theirs)
    ]
    pieces = [_piece(*each) for each in tensors if each[0] in changes]
    for prefix, mine, theirs in pairs:
        for name in mine._parameters.keys() - dict(_tensors(theirs)).keys():
            if prefix + name in changes:
                raise CannotTakeOver(f"{prefix}{name} was removed")
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
        places += _change(vars(mine), _attributes(theirs), changes, prefix.__add__)
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
    if _kind(mine) is not _kind(theirs):
        raise CannotTakeOver(f"it is of type {type(mine).__name__} on this rank")
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
