"""What keeps a value from being pickled: the path to it, and a sentence that says what to do."""

from __future__ import annotations

import functools
import io
import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.user_modules import own_file

Parts = Iterator[tuple[str, Any]]
Try = Callable[[Any], object]

_DEEPEST = 20
_MOST_PARTS = 10_000

# What exceptions say that the sentence says better.
_SAID_ALREADY = ("cannot pickle", "can't pickle", "Cannot pickle", "cannot be pickled", "serialize")

_WORDS = {
    "_thread.lock": "a lock",
    "_thread.RLock": "a lock",
    "_thread._local": "data of one thread",
    "_io.BufferedReader": "an open file",
    "_io.BufferedWriter": "an open file",
    "_io.BufferedRandom": "an open file",
    "_io.FileIO": "an open file",
    "_io.TextIOWrapper": "an open file",
    "_asyncio.Future": "a future",
    "_asyncio.Task": "a task",
    "builtins.async_generator": "an asynchronous generator",
    "builtins.coroutine": "a coroutine",
    "builtins.frame": "a frame",
    "builtins.generator": "a generator",
    "builtins.traceback": "a traceback",
    "socket.socket": "a socket",
    "sqlite3.Connection": "a connection to a database",
    "sqlite3.Cursor": "a cursor of a database",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter": "an iterator of a DataLoader",
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter": "an iterator of a DataLoader",
    "weakref.ReferenceType": "a weak reference",
}


def obstacle(
    value: Any, name: str, error: Exception, attempt: Try, *, back: bool, used_by: str | None
) -> UsageError:
    """Return the error that says why ``value`` does not travel.

    Parameters
    ----------
    value
        What could not be pickled.
    name
        What a person calls it.
    error
        What pickling it raised.
    attempt
        Pickles a part of it; raises where that is not possible.
    back
        Whether it was on its way to the notebook.
    used_by
        The function of the person's that uses it, if nobody named it.
    """
    way = _follow(value, error, attempt)
    what = "brought to the notebook" if back else "sent to another process"
    user = f", which {used_by} uses," if used_by else ""
    if "recursion" in f"{type(way[-1].error).__name__} {way[-1].error}".lower():
        return UsageError(
            f"{name}{user} cannot be {what}: it is a chain of objects that is too long to follow. "
            "Put them in a list."
        )
    shown = _worth_showing(way)
    culprit = shown[-1].value
    path = name + "".join(found.step for found in shown)
    words = _described(culprit, way[-1].error)
    if len(shown) < len(way):
        words = f"{_named(culprit)} with {_named(way[-1].value)} in it"
    return UsageError(
        f"{path}{user} cannot be {what}: it is {words}. {_advice(name, path, shown, back)}"
    )


@dataclass(frozen=True)
class _Found:
    """A value that cannot be pickled, the step that led to it, and what pickling it raised."""

    step: str
    value: Any
    error: Exception


def _follow(value: Any, error: Exception, attempt: Try) -> list[_Found]:
    """Go down to the first part that cannot be pickled, and in it again."""
    way = [_Found("", value, error)]
    seen = {id(value)}
    while len(way) <= _DEEPEST:
        for step, part in itertools.islice(_parts(way[-1].value), _MOST_PARTS):
            if id(part) in seen:
                continue
            try:
                attempt(part)
            except Exception as inner:
                way.append(_Found(step, part, inner))
                seen.add(id(part))
                break
        else:
            break
    return way


def _worth_showing(way: list[_Found]) -> list[_Found]:
    """Leave out what lies behind a private attribute of an object that is not the person's."""
    for index in range(1, len(way)):
        owner = way[index - 1].value
        private = way[index].step.startswith("._") and not way[index].step.endswith("__")
        if private and not _is_persons(owner) and not _is_module(owner):
            return way[:index]
    return way


def _is_persons(value: Any) -> bool:
    name = type(value).__module__
    return name == "__main__" or bool((module := sys.modules.get(name)) and own_file(module))


def _is_module(value: Any) -> bool:
    """Return whether it is a module of torch, whose hooks are found behind a private name."""
    return isinstance(getattr(value, "_modules", None), dict)


def _named(value: Any) -> str:
    kind = type(value)
    full = f"{kind.__module__}.{kind.__qualname__}"
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else full
    return _WORDS.get(full) or f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _described(culprit: Any, error: Exception) -> str:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    said = any(words in reason for words in _SAID_ALREADY)
    return _named(culprit) if said else f"{_named(culprit)} ({reason})"


def _advice(name: str, path: str, way: list[_Found], back: bool) -> str:
    value, culprit = way[0].value, way[-1].value
    if isinstance(culprit, types.GeneratorType):
        return f"{'Ask for' if back else 'Send'} `list({path})` instead."
    if back:
        return f"Ask for the parts of {name} that you need." if way[1:] else "It can stay there."
    verb = "Define" if isinstance(value, (type, types.FunctionType)) else "Create"
    if isinstance(value, io.IOBase):
        verb = "Open"
    inside = f"{verb} {name} inside of the cell"
    if way[1:] and all(found.step.startswith((".", "[")) for found in way[1:]):
        return f"{inside}, or set {path} to None before."
    return f"{inside}."


def _parts(value: Any) -> Parts:
    """Yield the parts that a value is pickled with, each with the step that leads to it."""
    kind = type(value)
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from _parts_of_mapping(value.keywords, ".keywords")
        yield from _numbered(value.args, ".args")
    elif isinstance(value, type):
        if value.__module__ == "__main__":
            yield from ((f".{name}", part) for name, part in vars(value).items())
    elif isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    elif isinstance(value, property):
        yield from (("", part) for part in (value.fget, value.fset, value.fdel) if part)
    elif kind.__module__.startswith("pandas"):
        yield from _parts_of_pandas(value)
    elif kind.__name__ == "ndarray" and value.dtype.hasobject:
        yield from _numbered(value.flat)
    else:
        if isinstance(value, dict):
            yield from _parts_of_mapping(value)
        elif isinstance(value, (list, tuple, deque)):
            yield from _numbered(value)
        elif isinstance(value, (set, frozenset)):
            yield from (("{…}", part) for part in value)
        yield from _parts_of_state(value)


def _parts_of_mapping(mapping: Mapping[Any, Any], prefix: str = "") -> Parts:
    for key, part in list(mapping.items()):
        yield f"{prefix}[{key!r}]", part
        yield f"{prefix} → a key", key


def _numbered(items: Any, prefix: str = "") -> Parts:
    return ((f"{prefix}[{index}]", part) for index, part in enumerate(items))


def _parts_of_function(function: types.FunctionType) -> Parts:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" → {name}", cell.cell_contents
        except ValueError:  # not bound yet
            continue
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    for name, part in zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True):
        yield f" → {name}", part
    for name, part in (function.__kwdefaults__ or {}).items():
        yield f" → {name}", part
    for name, part in vars(function).items():
        yield f".{name}", part


def _parts_of_pandas(value: Any) -> Parts:
    pandas = sys.modules["pandas"]
    if isinstance(value, pandas.DataFrame):
        yield from ((f"[{name!r}]", value[name]) for name in value.columns)
    elif isinstance(value, (pandas.Series, pandas.Index)) and value.dtype == object:
        keys = value.index if isinstance(value, pandas.Series) else range(len(value))
        yield from ((f"[{key!r}]", part) for key, part in zip(keys, value.array, strict=True))


def _parts_of_state(value: Any) -> Parts:
    """Yield what the value's own way of being pickled would take with it."""
    own = {name for base in type(value).__mro__[:-1] for name in vars(base)}
    if own.isdisjoint({"__reduce_ex__", "__reduce__"}):
        state = _quietly(value.__getstate__)
    else:
        reduced = _quietly(functools.partial(value.__reduce_ex__, 5))
        if not isinstance(reduced, tuple):
            return
        yield from (("", part) for part in reduced[1] if part is not value)
        state = reduced[2] if len(reduced) > 2 else None
        yield from (("", part) for items in reduced[3:5] if items for part in items)
    for attributes in state if isinstance(state, tuple) else (state,):
        if isinstance(attributes, dict):
            yield from _attributes(attributes)
        elif attributes is not None:
            yield "", attributes
    if type(value).__module__ == "__main__":
        yield f" → {type(value).__qualname__}", type(value)


def _attributes(state: dict[Any, Any]) -> Parts:
    for name, part in state.items():
        # Modules of torch keep here what a person reaches as attributes.
        if name in ("_modules", "_parameters", "_buffers") and isinstance(part, dict):
            for inner, each in part.items():
                yield f"[{inner}]" if inner.isdigit() else f".{inner}", each
        else:
            yield f".{name}", part


def _quietly(take_apart: Callable[[], Any]) -> Any:
    try:
        return take_apart()
    except Exception:  # it is this object itself that cannot be pickled
        return None
