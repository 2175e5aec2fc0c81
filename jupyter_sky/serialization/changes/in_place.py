"""Gives an object of the notebook the content of its copy, while it stays the same object.

The content of an array, a tensor or a container is replaced. Any other object is given the state
that pickle would give to a new one; this is possible for classes of which pickle first makes an
empty object, and then fills it.

torch and numpy are never imported here: if they are not loaded, no value is theirs.
"""

from __future__ import annotations

import copyreg
import pickle
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import CellType, SimpleNamespace
from typing import Any

from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.object_tokens.kinds import is_mutable, is_plain
from jupyter_sky.serialization.reducers.by_type import reduce

_CONTAINERS = (list, dict, set, bytearray, deque, OrderedDict, defaultdict, Counter)

_new_object: Any = vars(copyreg)["__newobj__"]
"""The function with which pickle makes an empty object."""

Fill = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Change:
    """A change that gives an object the content of its copy.

    Attributes
    ----------
    content
        The content of the copy that differs. It still refers to copies, which the caller replaces.
    make
        Called with the object and the content, to make the change.
    """

    content: Any
    make: Fill


@dataclass(frozen=True)
class Links:
    """Which objects are copies of which.

    Attributes
    ----------
    own, copies
        Numbers by identity: an object and its copy have the same number.
    alike
        Further objects whose content is that of their copies, by the identity of these.
    """

    own: Mapping[int, int]
    copies: Mapping[int, int]
    alike: dict[int, Any] = field(default_factory=dict)


def is_changeable(own: Any, copy: Any) -> bool:
    """Return whether an object can be given the content of its copy."""
    if type(own) is not type(copy) or own is copy:
        return False
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch and isinstance(own, torch.Tensor):
        return _is_plain_tensor(torch, own) and (own.is_leaf or _is_alike(own, copy))
    if numpy and isinstance(own, numpy.ndarray):
        return (
            type(own) is numpy.ndarray
            and (own.shape, own.dtype) == (copy.shape, copy.dtype)
            and own.flags.writeable
            and not own.dtype.hasobject
        )
    if type(own) in (*_CONTAINERS, CellType):
        return True
    if _set_generator(own):
        return getattr(own, "device", None) == getattr(copy, "device", None)
    return _state(own) is not None and _state(copy) is not None


def change(own: Any, copy: Any, links: Links) -> Change | None:
    """Return the change that gives an object the content of its copy; ``None`` if it has it.

    Parameters
    ----------
    own
        The object, which has to be changeable (`is_changeable`).
    copy
        Its copy.
    links
        Objects that count as the same whatever their content is. Those that are found to have the
        same content are added to ``alike``.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch and isinstance(own, torch.Tensor):
        return Change(None, lambda own, _: _copy_tensor(own, copy))
    if numpy and isinstance(own, numpy.ndarray):
        return Change(None, lambda own, _: numpy.copyto(own, copy))
    if set_generator := _set_generator(own):
        return Change(None, lambda own, _: set_generator(own, copy))
    if type(own) is CellType:
        return None if _is_same(_cell(own), _cell(copy), links) else Change(_cell(copy), _set_cell)
    if type(own) in _CONTAINERS:
        content = _contained(copy)
        same = _is_same(_contained(own), content, links)
        return None if same else Change(content, _refill)
    return _change_of_object(own, copy, links)


def taken_over(own: Any, copy: Any) -> Any:
    """Return what an object becomes by its copy: the same object, unless it cannot be changed."""
    links = Links({}, {})
    if _is_same(own, copy, links):
        return own
    if is_mutable(own):
        with suppress(Exception):  # of any kind, from the user's classes
            if is_changeable(own, copy):
                if found := change(own, copy, links):
                    found.make(own, found.content)
                return own
    return copy


# Arrays and tensors


def overlapping(objects: Iterable[Any]) -> list[list[Any]]:
    """Return the arrays that share memory with others of these, as views do, in groups."""
    numpy: Any = sys.modules.get("numpy")
    arrays = [
        each
        for each in objects
        if numpy and type(each) is numpy.ndarray and each.size and not each.dtype.hasobject
    ]
    if len(arrays) < 2:
        return []
    bounds = getattr(numpy, "byte_bounds", None) or numpy.lib.array_utils.byte_bounds
    groups: list[list[Any]] = []
    end = 0
    for (first, after), each in sorted(
        ((bounds(each), each) for each in arrays), key=lambda found: found[0]
    ):
        if first >= end:
            groups.append([])
        groups[-1].append(each)
        end = max(end, after)
    return [group for group in groups if len(group) > 1]


def change_of_part(own: Any, copy: Any) -> Change:
    """Return the change of what differs between an array and its copy, which has to differ now.

    On a rank a view is an array of its own: what was changed in one of them is not set back by the
    other, whichever is changed first.
    """
    numpy: Any = sys.modules["numpy"]
    where = differing(own, copy)
    return Change(None, lambda own, _: numpy.copyto(own, copy, where=where))


def differing(own: Any, copy: Any) -> Any:
    """Return where an array differs from another one, as an array; NaN is the same as NaN."""
    return (own != copy) & ~((own != own) & (copy != copy))


def _is_plain_tensor(torch: Any, tensor: Any) -> bool:
    kinds = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.nn.Parameter))
    return (
        type(tensor) in kinds
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not any(size > 1 and not step for size, step in zip(*_layout(tensor), strict=True))
    )


def _layout(tensor: Any) -> tuple[Any, Any]:
    return tensor.shape, tensor.stride()


def _is_alike(own: Any, copy: Any) -> bool:
    return (own.shape, own.dtype) == (copy.shape, copy.dtype)


def _copy_tensor(own: Any, copy: Any) -> None:
    if _is_alike(own, copy):
        own.detach().copy_(copy.detach())
    else:
        own.grad = None
        own.data = copy.detach().to(own.device)
    if own.is_leaf and own.requires_grad != copy.requires_grad:
        own.requires_grad_(copy.requires_grad)


# Generators of random numbers, which would be new ones: pickle makes them with their states.


def _set_generator(own: Any) -> Fill | None:
    """Return what gives a generator the state of its copy; ``None`` if it is none."""
    if type(own) is random.Random:
        return lambda own, copy: own.setstate(copy.getstate())
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random and type(own) is numpy_random.Generator:
        return lambda own, copy: setattr(own.bit_generator, "state", copy.bit_generator.state)
    if numpy_random and type(own) is numpy_random.RandomState:
        return lambda own, copy: own.set_state(copy.get_state(legacy=False))
    torch = sys.modules.get("torch")
    if torch and type(own) is torch.Generator:
        return lambda own, copy: own.set_state(copy.get_state())
    return None


# Containers


def _contained(container: Any) -> Any:
    """Return a plain container with the same content."""
    return dict(container) if isinstance(container, dict) else [*container]


def _refill(own: Any, content: Any) -> None:
    own.clear()
    if isinstance(own, (list, deque, bytearray)):
        own.extend(content)
    else:
        own.update(content)


def _cell(cell: CellType) -> list[Any]:
    """Return what a variable of a closure holds, in a list that is empty if it is not bound."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _set_cell(own: CellType, content: list[Any]) -> None:
    if content:
        [own.cell_contents] = content
    else:
        del own.cell_contents


def _is_same(own: Any, copy: Any, links: Links) -> bool:
    if is_plain(own) and is_plain(copy):
        return pickle.dumps(own, 5) == pickle.dumps(copy, 5)
    with suppress(Exception):  # of any kind, from the user's classes: it cannot be pickled
        here, there = (
            pickling.dump_linked([own], links.own),
            pickling.dump_linked([copy], links.copies),
        )
        if here.stream == there.stream and here.buffers == there.buffers:
            # Then the objects in them are alike too, pair by pair.
            places = dict(here.memo.values())
            links.alike.update(
                {
                    key: places[index]
                    for key, (index, each) in there.memo.items()
                    if is_mutable(each)
                }
            )
            return True
    return False


# Other objects


@dataclass(frozen=True)
class _State:
    """What pickle fills an empty object with: attributes, or a state for ``set_state``; items."""

    attributes: Any
    items: Any
    set_state: Fill | None

    @property
    def is_plain(self) -> bool:
        """Whether it has nothing but attributes in a dictionary."""
        return self.set_state is None and isinstance(self.attributes, dict)


def _state(obj: Any) -> _State | None:
    """Return the state of an object; ``None`` if pickle does not begin with an empty object."""
    kind: Any = type(obj)
    reduced = reduce(obj)
    if reduced is NotImplemented:
        reduced = obj.__reduce_ex__(5)
    empty = (kind, ()) if kind is SimpleNamespace else (_new_object, (kind,))
    if kind is partial:  # its state has the function, too
        empty = kind, (obj.func,)
    if not isinstance(reduced, tuple) or reduced[:2] != empty:
        return None
    state = reduced[2] if len(reduced) > 2 else None
    set_state = reduced[5] if len(reduced) > 5 else None
    if set_state is None and hasattr(kind, "__setstate__") and not _is_module(kind):
        set_state = kind.__setstate__
    items = _contained(obj) if isinstance(obj, (dict, list)) else None
    return _State({} if state is None and not set_state else state, items, set_state)


def _is_module(kind: Any) -> bool:
    """Return whether this is a torch module whose state is only its attributes."""
    torch = sys.modules.get("torch")
    return torch is not None and kind.__setstate__ is torch.nn.Module.__setstate__


def _change_of_object(own: Any, copy: Any, links: Links) -> Change | None:
    former, state = _state(own), _state(copy)
    assert former and state, f"is_changeable says that {type(own).__name__} is"
    content = state.attributes, state.items
    if _is_same((former.attributes, former.items), content, links):
        return None
    if not (former.is_plain and state.is_plain):
        return Change(content, lambda own, content: _fill(own, content, state.set_state))
    # Equal attributes stay as they are: the copy of a function, say, would be another function.
    changed = {
        name: each
        for name, each in state.attributes.items()
        if name not in former.attributes or not _is_same(former.attributes[name], each, links)
    }
    gone = former.attributes.keys() - state.attributes.keys()

    def update(own: Any, content: Any) -> None:
        for name in gone:
            vars(own).pop(name, None)
        _fill(own, content, None)

    return Change((changed, state.items), update)


def _fill(own: Any, content: tuple[Any, Any], set_state: Fill | None) -> None:
    state, items = content
    if items is not None:
        _refill(own, items)
    if set_state is not None:
        set_state(own, state)
        return
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes:
        vars(own).update(attributes)
    for name, each in (slots or {}).items():
        object.__setattr__(own, name, each)
