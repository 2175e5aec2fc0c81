"""Why a value cannot be pickled: the path to the failing part, and what the user can do."""

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
from jupyter_sky.serialization.models import sharded
from jupyter_sky.serialization.models.sharded import CannotGather
from jupyter_sky.serialization.user_modules import user_source_file

Parts = Iterator[tuple[str, Any]]
Attempt = Callable[[Any], object]

_MAX_DEPTH = 20
_MAX_PARTS = 10_000

# Messages of exceptions that would add nothing to the sentence.
_UNINFORMATIVE = (
    "cannot pickle",
    "can't pickle",
    "Cannot pickle",
    "cannot be pickled",
    "serialize",
)

_DESCRIPTIONS = {
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
}


def explain_failure(
    value: Any,
    name: str,
    error: Exception,
    attempt: Attempt,
    *,
    to_notebook: bool,
    used_by: str | None,
) -> UsageError:
    """Return an error that explains why ``value`` cannot be pickled.

    Parameters
    ----------
    value
        The value that could not be pickled.
    name
        Its name for the user.
    error
        The exception that pickling it raised.
    attempt
        Pickles a part of the value; raises an exception if that is not possible.
    to_notebook
        Whether the value was to be sent to the notebook.
    used_by
        The user's function that uses the value, if the cell itself does not.
    """
    path = _failing_path(value, error, attempt)
    what = "brought to the notebook" if to_notebook else "sent to another process"
    user = f", which {used_by} uses," if used_by else ""
    if "recursion" in f"{type(path[-1].error).__name__} {path[-1].error}".lower():
        return UsageError(
            f"{name}{user} cannot be {what}: it is a chain of objects that is too long to follow. "
            "Put them in a list."
        )
    shown = _without_private_parts(path)
    culprit = shown[-1].value
    expression = name + "".join(part.step for part in shown)
    words = _described(culprit, path[-1].error)
    if len(shown) < len(path):
        words = f"{_kind_of(culprit)} with {_kind_of(path[-1].value)} in it"
    advice = _advice(name, expression, shown, to_notebook, used_by)
    return UsageError(f"{expression}{user} cannot be {what}: it is {words}. {advice}")


@dataclass(frozen=True)
class _FailingPart:
    """A value that cannot be pickled, the step that leads to it, and the exception raised."""

    step: str
    value: Any
    error: Exception


def _failing_path(value: Any, error: Exception, attempt: Attempt) -> list[_FailingPart]:
    """Return the value, its first failing part, the first failing part of that, and so on."""
    path = [_FailingPart("", value, error)]
    seen = {id(value)}
    while len(path) <= _MAX_DEPTH:
        for step, part in itertools.islice(_parts(path[-1].value), _MAX_PARTS):
            if id(part) in seen:
                continue
            try:
                attempt(part)
            except Exception as inner:
                path.append(_FailingPart(step, part, inner))
                seen.add(id(part))
                break
        else:
            break
    return path


def _without_private_parts(path: list[_FailingPart]) -> list[_FailingPart]:
    """Return the path, cut off before private attributes of a library's objects."""
    for index in range(1, len(path)):
        owner, step = path[index - 1].value, path[index].step
        private = step.startswith("._") and not step.endswith("__")
        if private and not _has_class_of_user(owner) and not _is_torch_module(owner):
            return path[:index]
    return path


def _has_class_of_user(value: Any) -> bool:
    name = type(value).__module__
    if name == "__main__":
        return True
    module = sys.modules.get(name)
    return module is not None and user_source_file(module) is not None


def _is_torch_module(value: Any) -> bool:
    """Return whether it is a torch module; the attribute of users' hooks has a private name."""
    return isinstance(getattr(value, "_modules", None), dict)


def _kind_of(value: Any) -> str:
    kind = type(value)
    full = f"{kind.__module__}.{kind.__qualname__}"
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else full
    return _DESCRIPTIONS.get(full) or f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _described(culprit: Any, error: Exception) -> str:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    said = any(words in reason for words in _UNINFORMATIVE)
    return _kind_of(culprit) if said else f"{_kind_of(culprit)} ({reason})"


def _advice(
    name: str,
    expression: str,
    path: list[_FailingPart],
    to_notebook: bool,
    used_by: str | None,
) -> str:
    value, culprit = path[0].value, path[-1].value
    if isinstance(culprit, types.GeneratorType):
        return f"{'Ask for' if to_notebook else 'Send'} `list({expression})` instead."
    if isinstance(path[-1].error, CannotGather):
        return (
            f"Ask for it as {name}:state if it is a model, or keep it where the ranks are: "
            "sky.save(path, model=…, optimizer=…)."
        )
    if to_notebook:
        return f"Ask for the parts of {name} that you need." if path[1:] else "It can stay there."
    if any(base.__module__.startswith("ipywidgets.") for base in type(culprit).__mro__):
        return "It stays in the notebook: give the cell what it holds, as in `rate = slider.value`."
    verb = "Define" if isinstance(value, (type, types.FunctionType)) else "Create"
    if isinstance(value, io.IOBase):
        verb = "Open"
    inside = f"{verb} {name} inside the {'function' if used_by else 'cell'}"
    part = _part_to_set(path)
    return f"{inside}, or set {name}{part} to None before." if part else f"{inside}."


def _part_to_set(path: list[_FailingPart]) -> str:
    """Return the innermost part that is the user's own to change; "" if there is none."""
    found = steps = ""
    for owner, part in itertools.pairwise(path):
        if not part.step.startswith((".", "[")):
            break
        steps += part.step
        is_plain = isinstance(owner.value, dict | list | types.SimpleNamespace)
        if is_plain or _is_torch_module(owner.value) or _has_class_of_user(owner.value):
            found = steps
    return found


def _parts(value: Any) -> Parts:
    """Yield the parts that are pickled along with a value, each with the step that leads to it."""
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
    """Yield the parts that the value's ``__reduce_ex__`` or ``__getstate__`` returns."""
    own = {name for base in type(value).__mro__[:-1] for name in vars(base)}
    reduce_sharded = sharded.reducer()
    reduced = _or_none(lambda: reduce_sharded and reduce_sharded(value))
    if isinstance(reduced, tuple):
        yield from (("", part) for part in reduced[1])
        state = reduced[2] if len(reduced) > 2 else None
    elif own.isdisjoint({"__reduce_ex__", "__reduce__"}):
        state = _or_none(value.__getstate__)
    else:
        reduced = _or_none(functools.partial(value.__reduce_ex__, 5))
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
        # Torch modules keep here what users access as attributes.
        if name in ("_modules", "_parameters", "_buffers") and isinstance(part, dict):
            for inner, each in part.items():
                yield f"[{inner}]" if inner.isdigit() else f".{inner}", each
        else:
            yield f".{name}", part


def _or_none(reduce: Callable[[], Any]) -> Any:
    try:
        return reduce()
    except Exception:  # the object itself cannot be pickled
        return None
