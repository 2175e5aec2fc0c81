"""Tensors of a rank that are given the content of those that the notebook has edited.

An optimizer that was made for a tensor would train the former one, if the notebook's took its
place.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.changes import container_changes, in_place


def found_in(values: Iterable[Any]) -> dict[int, Any]:
    """Return the tensors among values, and in their containers and tuples, by identity."""
    found = (each for value in values for each in container_changes.values_in(value))
    return {id(each): each for each in found if is_one(each)}


def is_one(value: Any) -> bool:
    """Return whether a value is a tensor, or the parameter of a model."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


def can_take_over(present: Any, received: Any) -> bool:
    """Return whether what is here can be given the content of what was received."""
    return (
        is_one(received)
        and in_place.is_changeable(present, received)
        and present.is_leaf
        and (present.requires_grad or received.requires_grad)
        and _kind(present) == _kind(received)
        and not vars(received)  # attributes of the user's
    )


def _kind(tensor: Any) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def take_over(present: Any, received: Any) -> None:
    """Give what is here the content of what was received."""
    if change := in_place.change(present, received, in_place.Links({}, {})):
        change.make(present, change.content)


def sharing(values: Iterable[Any]) -> set[int]:
    """Return the identities of the tensors in values that share memory with others there."""
    torch = sys.modules["torch"]
    memo = pickling.dump_linked([*values], {}).memo
    memory = {
        key: each.untyped_storage().data_ptr()
        for key, (_, each) in memo.items()
        if is_one(each) and each.layout is torch.strided
    }
    # Pickle also meets the data of each parameter, as a tensor of its own.
    parameters = [each for key, each in memory.items() if type(memo[key][1]) is torch.nn.Parameter]
    counts = Counter(memory.values()) - Counter(parameters)
    return {key for key, each in memory.items() if counts[each] > 1}
