"""Parts of models and optimizers that the notebook has set, perhaps to what they were.

``model.train()`` in the notebook sets a mode which ranks may have left, and the notebook not.
What is written to tensors is known from torch (`writes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from jupyter_sky.analysis.labels import EACH, attribute_of, is_item, key_of, method_label
from jupyter_sky.serialization.changes.model_changes import (
    REQUIRES_GRAD,
    HeldModels,
    KnownModel,
    modules_of,
)
from jupyter_sky.serialization.models import optimizers
from jupyter_sky.serialization.models.torch_kinds import has_modules, is_any, is_optimizer

_MODES = (method_label("train"), method_label("eval"))
_FREEZES = method_label("requires_grad_")
_LOADS = method_label("load_state_dict")
_PARAMETER = " "  # no name of another part begins so


def is_set_by(method: str, obj: Any) -> bool:
    """Return whether a method of torch sets parts of a model or optimizer, or a parameter."""
    label = method_label(method)
    return label == _FREEZES or (label in (*_MODES, _LOADS) and is_any(obj))


def within(obj: Any, part: str | None) -> list[Any]:
    """Return the parts of a model of which the same was set; other values may hold them."""
    return [*obj.parameters()] if part == _FREEZES and has_modules(obj) else []


def set_parts(
    held: HeldModels, parts: Mapping[int, Set[str | None]]
) -> tuple[HeldModels, set[int]]:
    """Have parts of models and optimizers count as changed.

    Parameters
    ----------
    held
        The models and optimizers of a value, as ranks have them.
    parts
        The labels of what was set (see `object_changes.ObjectChange`), by the identity of what it
        was set in: one of them, or a module, a parameter or a group of parameters in one.

    Returns
    -------
    HeldModels
        Those that count as the ranks' now.
    set of int
        The identities of what is in them.
    """
    found: set[int] = set()
    models = {}
    for identity, known in held.models.items():
        names: dict[str, str] = {}
        for part, prefix in _parts(known.model()):
            if id(part) in parts:
                found.add(id(part))
                names |= _set_in(known, prefix, parts[id(part)])
        models[identity] = replace(known, contents={**known.contents, **names}) if names else known
    return replace(held, models=models), found


def _parts(model: Any) -> Iterator[tuple[Any, str]]:
    """Yield a model or optimizer and its parts, each with what its names begin with."""
    if has_modules(model):
        for prefix, module in modules_of(model):
            yield module, prefix
            for name, parameter in module._parameters.items():
                yield parameter, f"{_PARAMETER}{prefix}{name}"
    else:
        yield model, ""
        for index, group in enumerate(model.param_groups if is_optimizer(model) else ()):
            yield group, f"{index}."
            yield from ((each, _PARAMETER) for each in group["params"])


def _set_in(known: KnownModel, prefix: str, parts: Set[str | None]) -> dict[str, str]:
    if prefix.startswith(_PARAMETER):
        name = f"{prefix.removeprefix(_PARAMETER)}{REQUIRES_GRAD}"
        is_set = name in known.contents and not parts.isdisjoint((_FREEZES, ".requires_grad"))
        return {name: ""} if is_set else {}
    model = known.model()
    return {
        name: ""
        for name in known.contents
        if name.startswith(prefix)
        and any(_is_set(name.removeprefix(prefix), part, model) for part in parts if part)
    }


def _is_set(name: str, part: str, model: Any) -> bool:
    if part in _MODES:
        return has_modules(model) and name.rpartition(".")[2] == "training"
    if part == _FREEZES:
        return has_modules(model) and name.endswith(REQUIRES_GRAD)
    if part == _LOADS:
        if is_optimizer(model):  # whose class may keep more, which is not loaded
            return name == optimizers.STATE or "." in name
        return not has_modules(model) and name not in optimizers.MADE_FOR
    if is_item(part) and part != EACH:
        return name == str(key_of(part))
    return name == attribute_of(part)
