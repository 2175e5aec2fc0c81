"""Models and optimizers that the notebook changed in place: what changed is changed on the ranks.

A rank's optimizer, its DistributedDataParallel and its shards refer to the parameters that are
there. Another model under the same name would leave them behind, and they would train what nobody
uses any more. So a model that ranks have, and that is still the same object in the notebook, is not
replaced. The notebook compares what is in it with what was in it when the ranks got it or gave it
(`contents`), and a rank takes over what differs (`node.rank.namespace.takeover`): ``model.eval()``
changes a mode, and leaves alone what was trained since.

The same holds for models in another value, like a trainer. If nothing else of that was changed in
the notebook, the rank's stays, with what a rank has done to it.

torch is never imported here: where it is not loaded, nothing is a model.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.changes import writes
from jupyter_sky.serialization.models import hooks, optimizers, prepared, sharded
from jupyter_sky.serialization.models.torch_kinds import has_modules, is_any

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
    value: Any, shared: Mapping[int, tuple[int, Any]], digests: blobs.MemoryDigests
) -> HeldModels | None:
    """Return the models and optimizers of a value; ``None`` if it has none.

    Parameters
    ----------
    value
        Any value.
    shared
        The mutable objects in it (`Pickled.shared`).
    digests
        Digests of memory; new ones are added.
    """
    if "torch" not in sys.modules:
        return None
    if is_any(value):
        model = known(value, digests)
        return HeldModels({id(value): model}, None) if model else None
    by_kind = {type(each): each for _, each in shared.values()}  # of which there are few
    kinds = {kind for kind, each in by_kind.items() if is_any(each)}
    objects = [each for _, each in shared.values() if kinds and type(each) in kinds]
    parts = {id(part) for each in filter(has_modules, objects) for part in each.children()}
    models = {id(each): known(each, digests) for each in objects if id(each) not in parts}
    found = {identity: model for identity, model in models.items() if model}
    if not found:
        return None
    pickled = pickling.dump_linked([value], {identity: identity for identity in found})
    return HeldModels(found, writes.digest(pickled, digests))


def known(value: Any, digests: blobs.MemoryDigests) -> KnownModel | None:
    """Return a model or optimizer with what is in it; ``None`` for others, or if that is unknown.

    ``digests`` are those of memory.
    """

    def digest(part: Any) -> str:
        is_tensor = isinstance(part, sys.modules["torch"].Tensor)
        return _digest_of_tensor(part, digests) if is_tensor else _digest_of_attribute(part)

    with suppress(Exception):  # a parameter without a shape yet, a sparse buffer
        if has_modules(value):
            return KnownModel(weakref.ref(value), contents(value, digests))
        if is_any(value):
            return KnownModel(weakref.ref(value), optimizers.contents(value, digest))
    return None


def contents(model: Any, digests: blobs.MemoryDigests) -> dict[str, str]:
    """Return a digest of everything in a model: tensors, attributes and hooks of its modules.

    Parameters
    ----------
    model
        The model.
    digests
        Digests of memory; new ones are added.

    Returns
    -------
    dict
        By name, such as ``layers.0.weight`` and ``layers.0.training``.
    """
    found = {}
    for prefix, module in modules_of(model):
        for name, tensor in tensors_of(module):
            found[prefix + name] = _digest_of_tensor(tensor, digests)
            found[prefix + name + REQUIRES_GRAD] = str(tensor.requires_grad)
        for name, value in attributes_of(module).items():
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


def tensors_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters and buffers of a module itself, with their names there."""
    for named in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in named.items() if tensor is not None)


def attributes_of(module: Any) -> dict[str, Any]:
    """Return what is in a module besides what torch keeps in every one of them.

    What prepares it for mixed precision is left out too.
    """
    own, state = _kept_in_every_module(), prepared.unprepared(type(module), vars(module))
    return {name: value for name, value in state.items() if name not in own}


@functools.cache
def _kept_in_every_module() -> frozenset[str]:
    every = vars(sys.modules["torch"].nn.Module()).keys()
    return frozenset(every - {"training", "_is_full_backward_hook"})


def _digest_of_tensor(tensor: Any, digests: blobs.MemoryDigests) -> str:
    torch = sys.modules["torch"]
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    is_copy = flat.data_ptr() != tensor.data_ptr()  # whose address is that of others, later
    data = flat.view(torch.uint8).numpy()
    digest = blobs.digest(data) if is_copy else digests.of(data, owner=tensor)
    return f"{tensor.dtype} {tuple(tensor.shape)} {digest} {writes.of_tensor(tensor)}"


def _digest_of_attribute(value: Any) -> str:
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    return writes.digest(pickling.dump(value, without_caches=True), blobs.MemoryDigests())
