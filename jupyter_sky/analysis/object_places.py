"""Where objects are found that a cell names: the parts that lead to them, from a name on.

Nothing of the user's is run to find them: parts are looked up where Python, torch and pandas keep
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_sky.analysis import labels

_PARTS = "_modules", "_parameters", "_buffers"
_MAX_EACH = 1000  # items above which a list is bulk data, whose parts nobody compares

Lookup = Callable[[str], Sequence[Any]]
"""Returns the objects that a name may mean."""


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Where an object is found.

    Attributes
    ----------
    name
        The name under which it is found.
    steps
        The labels of the parts that lead to it: ``.sizes`` for ``run.sizes``.
    """

    name: str
    steps: tuple[str, ...] = ()

    def then(self, *steps: str) -> ObjectPlace:
        """Return where steps lead to from here."""
        return ObjectPlace(self.name, (*self.steps, *steps))

    def objects_in(self, lookup: Lookup) -> list[Any]:
        """Return the objects; none where code of the user's would have to be run."""
        found = [*lookup(self.name)]
        for step in self.steps:
            found = [part for each in found for part in _at(each, step)]
        return found


def _at(obj: Any, step: str) -> Sequence[Any]:
    """Return what a step leads to from an object."""
    try:
        attributes = _attributes(obj)
        match step:
            case labels.EACH if isinstance(obj, list):
                return _few([*list.__iter__(obj)])
            case labels.EACH:
                items = obj if isinstance(obj, dict) else _parts(attributes, "_modules")
                return _few([*dict.values(items)])
            case labels.MODULES:
                return [*_modules_in(obj, set())]
            case labels.PARAMETERS:
                modules = map(_attributes, _modules_in(obj, set()))
                return [each for of in modules for each in _parts(of, "_parameters").values()]
            case labels.ROWS:
                return [obj] if _package_of(obj) == "pandas" else []
            case ".data" if _package_of(obj) == "torch" and "data" not in attributes:
                return [obj]  # another tensor, with the same memory
        if name := labels.attribute_of(step):
            return [_attribute(attributes, name)]
        key = labels.key_of(step)
        if isinstance(obj, dict):
            return [dict.__getitem__(obj, key)]
        if isinstance(obj, list):
            return [list.__getitem__(obj, key)]
        return [_parts(attributes, "_modules")[str(key)]]
    except Exception:  # of any kind: what stands for another object may look it up, and fail
        return []


def _few(items: Sequence[Any]) -> Sequence[Any]:
    return items if len(items) <= _MAX_EACH else []


def _attributes(obj: Any) -> dict[str, Any]:
    try:
        attributes: dict[str, Any] = object.__getattribute__(obj, "__dict__")
        return attributes
    except AttributeError:
        return {}


def _attribute(attributes: Mapping[str, Any], name: str) -> Any:
    """Return an attribute; a torch module keeps its parts elsewhere."""
    for part in (attributes, *(_parts(attributes, each) for each in _PARTS)):
        if name in part:
            return part[name]
    raise LookupError(name)


def _parts(attributes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the parts of a kind that a torch module has; none for other objects."""
    parts = attributes.get(name)
    return parts if isinstance(parts, dict) else {}


def _modules_in(obj: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a module of torch, and those in it."""
    attributes = _attributes(obj)
    if "_modules" in attributes and "_parameters" in attributes and id(obj) not in seen:
        seen.add(id(obj))
        yield obj
        for each in _parts(attributes, "_modules").values():
            yield from _modules_in(each, seen)


def _package_of(obj: Any) -> str:
    return str(type(obj).__module__).partition(".")[0]
