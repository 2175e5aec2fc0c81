"""Containers that the notebook changed in place: the parts that changed are changed on the ranks.

What is wanted: ``config["lr"] = 0.1`` in the notebook, after ``config["step"] += 1`` in a cell on
ranks, leaves both with what was assigned last, as in one process.

What does not work: sending the whole value. It has the step with which the ranks began.

The solution: the notebook keeps a digest of each part of a dictionary, list, deque, set, plain
object or data frame from when ranks had the same (`contents`). It compares them with those of now
(`changes_of`), and a rank takes over the parts that differ (`node.rank.namespace.takeover`). A part
that is such a container itself has parts of its own. In what it is in, it counts as the same as
long as it is the same object.

A class of the notebook is such a container too: its data are its parts, and its methods are sent.
"""

from __future__ import annotations

import copyreg
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from jupyter_sky.analysis.labels import attribute_label, item_label
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.changes import classes, frames, writes
from jupyter_sky.serialization.models.torch_kinds import is_any
from jupyter_sky.serialization.object_tokens.kinds import SCALARS, is_referable
from jupyter_sky.serialization.reducers.by_type import reduce
from jupyter_sky.serialization.reducers.cached_properties import cached_properties

Contents = Mapping[int, Mapping[str, str]]
"""What is in containers, by their tokens: a digest of each part, by the part's label."""

_MAX_PARTS = 1000  # in a value, above which it is sent as a whole
DICTIONARIES = (dict, OrderedDict, defaultdict, Counter)
LISTS = (list, deque)
_WITH_LENGTH: tuple[type, ...] = (tuple, set, *LISTS, *DICTIONARIES)
LENGTH, ORDER, REST = " length", " order", " rest"
_IS_CLASS = " is a class"
_BY_PLACE = " by place"  # known by where it is: another one may be there (see `places`)

# What tells that pickle writes an object of a class in its usual way, and what tells that not.
_AS_USUAL = ("__reduce__", "__reduce_ex__", "__getstate__")
_SPECIAL = ("__setstate__", "__getnewargs__", "__getnewargs_ex__")
_OTHERS = (BaseException, ModuleType, FunctionType)
_plain_kinds: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def contents(
    value: Any,
    numbers: Mapping[int, int],
    models: Collection[int],
    digests: blobs.MemoryDigests,
) -> Contents | None:
    """Return what is in the containers of a value; ``None`` if it has none, or too many parts.

    Parameters
    ----------
    value
        Any value.
    numbers
        The tokens of the objects in it, by identity.
    models
        The identities of models and optimizers in it, which `model_changes` compares.
    digests
        Digests of memory; new ones are added.
    """
    with suppress(Exception):  # of any kind, from the user's classes
        containers = _containers_in(value)
        if containers and containers.keys() <= numbers.keys():
            return _contents(containers, numbers, models, digests)
    return None


def _contents(
    containers: Mapping[int, tuple[Any, Mapping[str, Any]]],
    numbers: Mapping[int, int],
    models: Collection[int],
    digests: blobs.MemoryDigests,
) -> Contents:
    links = {key: numbers[key] for key in {*containers, *models} & numbers.keys()}

    def digest(part: Any, is_of_frame: bool) -> str:
        if type(part) in SCALARS:
            text = repr(part)
            return text if len(text) < 64 else blobs.digest(text.encode(errors="replace"))
        if id(part) in links:
            return f"#{links[id(part)]}"
        pickled = pickling.dump_linked([part], links, without_caches=True)
        # pandas replaces an index by an equal one as it likes.
        number = None if is_of_frame else numbers.get(id(part))
        return f"#{number} {writes.digest(pickled, digests)}"

    found: dict[int, Mapping[str, str]] = {}
    for identity, (container, parts) in containers.items():
        is_frame = frames.is_frame(container)
        each = {name: digest(part, is_frame) for name, part in parts.items()}
        if type(container) in LISTS:
            each[LENGTH] = str(len(container))
        elif type(container) is not set:
            each[ORDER] = blobs.digest("".join(parts).encode(errors="replace"))
        if is_frame:
            each[REST] = digest(frames.rest_of(container), True)
        elif type(container) is defaultdict:
            factory = container.default_factory
            is_named = isinstance(factory, type) and factory.__module__ == "builtins"
            each[REST] = str(factory) if is_named else digest(factory, False)
        elif isinstance(container, type):
            each[_IS_CLASS] = ""
        if not is_referable(container):
            each[_BY_PLACE] = ""
        found[numbers[identity]] = each
    return found


def changes_of(
    former: Contents, now: Mapping[str, Contents], whole: Collection[str] = ()
) -> dict[str, list[str]]:
    """Return what differs in containers that ranks have.

    Parameters
    ----------
    former
        What was in containers when a rank had the same.
    now
        What is in those of the values that it is sent, by name.
    whole
        Names of which ranks have to have what the notebook has.

    Returns
    -------
    dict
        For each container that is the same object as that of the ranks, the labels of the parts
        that differ. Its key is the name of a value that it is in, and its token (``"config 17"``);
        that of a class is the key of its item.
    """
    found: dict[str, list[str]] = {}
    seen: set[int] = set()
    pushed = {token for name in now.keys() & whole for token in now[name]}
    for name, contents in now.items():
        if not pushed.isdisjoint(contents):
            continue  # it refers to what takes the place of what is there
        for token in contents.keys() & former.keys() - seen:
            if _is_same(former[token], contents[token]):
                key = name if _IS_CLASS in contents[token] else f"{name} {token}"
                found[key] = _differing(former[token], contents[token])
        seen |= contents.keys()
    return found


def _is_same(former: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether a container is still the same, as far as its token and content tell."""
    if former.get(frames.ROWS) != now.get(frames.ROWS):
        return False
    if _BY_PLACE not in former:
        return True  # it has been held since then, so that its token stands for no other
    return any(each == now.get(part) for part, each in former.items() if not part.startswith(" "))


def _differing(former: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    parts = {**former, **now}  # also what was removed
    found = [part for part in parts if former.get(part) != now.get(part)]
    found = [part for part in found if part not in (LENGTH, _BY_PLACE)]
    if former.get(LENGTH) != now.get(LENGTH):
        found.append(f"{LENGTH} {former[LENGTH]}")
    return found


def without(contents: Contents, token: int, labels: Collection[str]) -> Contents:
    """Return contents in which parts of a container differ from whatever they are."""
    return {**contents, token: {**contents[token], **dict.fromkeys(labels, "")}}


def values_in(value: Any) -> list[Any]:
    """Return a value and what is in its containers and tuples; nothing if that is too much."""
    return [*_walked(value)[1].values()]


def _containers_in(value: Any) -> dict[int, tuple[Any, Mapping[str, Any]]]:
    """Return the containers in a value with their parts, by identity; none if they are too many."""
    return _walked(value)[0]


def _walked(value: Any) -> tuple[dict[int, tuple[Any, Mapping[str, Any]]], dict[int, Any]]:
    """Return the containers in a value with their parts, and all values in it, by identity."""
    found: dict[int, tuple[Any, Mapping[str, Any]]] = {}
    seen: dict[int, Any] = {}
    waiting, left = [value], _MAX_PARTS
    while waiting:
        obj = waiting.pop()
        if id(obj) in seen:
            continue
        seen[id(obj)] = obj
        is_class = obj is value and classes.has_data(obj)
        if not (is_class or type(obj) is tuple or _is_container(obj)):
            continue
        left -= _size(obj)
        if left < 0:
            return {}, {}
        if type(obj) is tuple:
            waiting.extend(obj)
        elif (parts := parts_of(obj)) is not None:
            found[id(obj)] = obj, parts
            waiting.extend(parts.values())
    return found, seen


def _size(obj: Any) -> int:
    if frames.is_frame(obj):
        return len(obj.columns)
    return len(obj if type(obj) in _WITH_LENGTH else vars(obj))


def _is_container(obj: Any) -> bool:
    """Return whether an object is one whose parts can be changed one by one."""
    return type(obj) in _WITH_LENGTH[1:] or frames.is_frame(obj) or _is_plain_object(obj)


def _is_plain_object(obj: Any) -> bool:
    """Return whether pickle writes an object as its class and its attributes."""
    kind = type(obj)
    if not kind.__dictoffset__ or isinstance(obj, type):
        return False
    is_plain = _plain_kinds.get(kind)
    if is_plain is None:
        is_plain = _plain_kinds[kind] = kind is SimpleNamespace or (
            all(getattr(kind, name) is getattr(object, name) for name in _AS_USUAL)
            and not any(hasattr(kind, name) for name in _SPECIAL)
            and not copyreg.__dict__["_slotnames"](kind)
            and kind not in copyreg.dispatch_table
            and not issubclass(kind, (*_WITH_LENGTH, *SCALARS[:-1], *_OTHERS))
        )
    return is_plain and not is_any(obj) and reduce(obj) is NotImplemented


def has_parts(obj: Any) -> bool:
    """Return whether an object is a container whose parts are compared."""
    return _is_container(obj) and parts_of(obj) is not None


def parts_of(obj: Any) -> dict[str, Any] | None:
    """Return the parts of a container by their labels; ``None`` if some have none."""
    if type(obj) in LISTS:
        return {f"[{index}]": part for index, part in enumerate(obj)}
    if isinstance(obj, type):
        return {attribute_label(name): part for name, part in classes.data_in(vars(obj)).items()}
    if frames.is_frame(obj):
        named = frames.parts_of(obj)
    elif type(obj) is set:
        named = {item_label(each): None for each in obj}
    elif type(obj) in DICTIONARIES:
        named = {item_label(key): part for key, part in obj.items()}
    else:
        names = vars(obj).keys() - cached_properties(type(obj))
        return {attribute_label(name): part for name, part in vars(obj).items() if name in names}
    if None in named or len(named) < _size(obj):  # a key of the user's has the text of another
        return None
    return {str(name): part for name, part in named.items()}
