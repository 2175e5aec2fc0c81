"""The parts of a value, each with its digest: the parameters of a model, the items of a list.

Nothing is imported for this: torch or NumPy values only exist where these are loaded.
"""

from __future__ import annotations

import contextlib
import enum
import io
import math
import pickle
import struct
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jupyter_sky.node.rank.comparison import digests
from jupyter_sky.node.rank.comparison.describe import plain, type_name, words
from jupyter_sky.transport.protocol.inspection import PARTS_COMPARED, SeenPart

_LONG = 500  # items above which a list of numbers is a single part
_DEEPEST = 40
_LONGEST = 200  # characters of a path
_MARK = 8  # characters of a digest that tells paths apart
_SETTINGS = ("torch.dtype", "torch.device")
_LEAVES = ("numpy.", "pandas.", "random.", "torch._C.", *_SETTINGS)
_PLAIN_WAYS: Any = (object.__reduce_ex__, object.__reduce__)
_SCALARS = (float, complex, enum.Enum, set, frozenset)
_PLAIN = (int, str, bytes, bytearray, bool, type(None), range, slice, type(...))
_SEEN_ABOVE = "seen above"  # the digest of what contains itself

_until: ContextVar[float] = ContextVar("until", default=math.inf)

# The digests of functions within the value that is digested now, by their identity; each function
# stands beside its own, so that no other one has its identity meanwhile. Functions may reach each
# other in so many ways that following each of them anew would never end.
_of_functions: ContextVar[dict[int, tuple[Any, str]] | None] = ContextVar(
    "of_functions", default=None
)


class TakesTooLong(Exception):
    """The parts of a value, or their digests, were not found within the limit of time."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TakesTooLong` in the block where parts are still looked for after so many seconds."""
    token = _until.set(min(_until.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _until.reset(token)


def _check_time() -> None:
    if time.monotonic() > _until.get():
        raise TakesTooLong


@dataclass(frozen=True)
class Part:
    """A part of a value.

    Attributes
    ----------
    path
        Its path, as a Python expression.
    value
        The value of the part.
    sharded
        Whether each rank holds a different piece of it.
    digest
        Its digest, if that is not made from the value: items of a list are parts themselves.
    """

    path: str
    value: Any
    sharded: bool = False
    digest: str | None = None

    def seen(self) -> SeenPart:
        """Return the description to send."""
        try:
            digest = _digest(self.value) if self.digest is None else self.digest
        except TakesTooLong:
            raise
        except Exception:  # it cannot be pickled: only its name is compared
            digest = ""
        return {
            "path": self.short_path,
            "what": words(self.value),
            "digest": digest,
            "sharded": self.sharded,
        }

    @property
    def short_path(self) -> str:
        """Its path in few characters, by which it is still another one than each other's."""
        return self.path if len(self.path) <= _LONGEST else _marked(self.path, _LONGEST - _MARK - 1)


def parts(name: str, value: Any) -> Iterator[Part]:
    """Yield the parts of a value, the outermost first, in the same order on each rank."""
    yield from _walk(name, value, ())


def find(name: str, value: Any, path: str) -> Any:
    """Return the part at a path; ``None`` if it no longer exists."""
    for at, part in enumerate(parts(name, value)):
        if part.short_path == path or at >= PARTS_COMPARED:
            return part.value
    return None


def _walk(path: str, value: Any, above: tuple[int, ...]) -> Iterator[Part]:
    _check_time()
    if id(value) in above or len(above) > _DEEPEST:
        yield Part(path, value, digest=_SEEN_ABOVE)
        return
    above = (*above, id(value))
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        yield _tensor_part(path, value)
    elif torch is not None and isinstance(value, torch.nn.Module):
        yield from _module_parts(path, value)
    elif numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.hasobject:
        yield Part(path, value, digest=digests.of_text(f"{value.dtype} {value.shape}"))
        yield from _items(path, enumerate(value.reshape(-1).tolist()), above)
    elif isinstance(value, Mapping):
        yield Part(path, value, digest=digests.of_text(type_name(value)))
        yield from _items(path, value.items(), above)
    elif isinstance(value, list | tuple) and len(value) > _LONG and _are_plain(value):
        yield Part(path, value, digest=digests.of_text(repr(value)))
    elif isinstance(value, list | tuple):
        yield Part(path, value, digest=digests.of_text(f"{type_name(value)} {len(value)}"))
        yield from _items(path, enumerate(value), above)
    elif isinstance(value, types.FunctionType):
        if _of_functions.get() is None:
            yield from _function_parts(path, value, above)
        else:
            yield Part(path, value, digest=_of_function(value))
    elif isinstance(value, (*_PLAIN, *_SCALARS)) or _is_leaf(value):
        yield Part(path, value)
    elif (state := _state(value)) is not None:
        yield Part(path, value, digest=digests.of_text(type_name(value)))
        yield from _attributes(path, state, above)
    else:
        yield Part(path, value)


def _are_plain(items: Sequence[Any]) -> bool:
    return set(map(type, items)) <= {int, float, str, bool, type(None)}


def _items(path: str, items: Any, above: tuple[int, ...]) -> Iterator[Part]:
    for key, value in list(items):
        yield from _walk(f"{path}[{_key(key)}]", value, above)


def _attributes(path: str, state: Mapping[Any, Any], above: tuple[int, ...]) -> Iterator[Part]:
    for key, value in list(state.items()):
        inner = f"{path}.{key}" if isinstance(key, str) else f"{path}[{_key(key)}]"
        # An empty one is a part itself: without it, nothing is there.
        if isinstance(value, dict) and value and id(value) not in above:
            yield from _attributes(inner, value, (*above, id(value)))
        else:
            yield from _walk(inner, value, above)


def _key(key: Any) -> str:
    """Return what stands for a key in a path: the same on each rank, and for no other key."""
    if _is_told_by_repr(key):
        text = repr(key)
        return text if text == plain(text) else _marked(text, len(plain(text)))
    with contextlib.suppress(Exception):  # such a key is not told from others of its type
        return f"{plain(type_name(key))} {_digest(key)[:_MARK]}".rstrip()
    return plain(type_name(key))


def _is_told_by_repr(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_told_by_repr, key))
    return isinstance(key, (*_PLAIN, float, enum.Enum)) or type_name(key).startswith(_SETTINGS)


def _marked(text: str, length: int) -> str:
    """Return a text shortened to a length, with what tells it from others that begin alike."""
    return f"{plain(text[:length])}#{digests.of_text(text)[:_MARK]}"


def _function_parts(path: str, function: Any, above: tuple[int, ...]) -> Iterator[Part]:
    """Yield the code of a function, its defaults, and what it has of the functions around it."""
    yield Part(path, function)
    for number, value in enumerate(function.__defaults__ or ()):
        yield from _walk(f"{path}.__defaults__[{number}]", value, above)
    for name, value in (function.__kwdefaults__ or {}).items():
        yield from _walk(f"{path}.__kwdefaults__[{name!r}]", value, above)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is empty: the name is not bound yet
            yield from _walk(f"{path}.{name}", cell.cell_contents, above)


def _tensor_part(path: str, tensor: Any) -> Part:
    placements = getattr(tensor, "placements", ())
    is_split = any(not each.is_replicate() for each in placements)
    is_split = is_split or type(tensor).__name__ == "FlatParameter"
    if hasattr(tensor, "to_local"):
        return Part(path, tensor.to_local(), is_split)
    return Part(path, tensor, is_split)


def _module_parts(path: str, model: Any) -> Iterator[Part]:
    kinds = [f"{name} {type(each).__name__}" for name, each in model.named_modules()]
    yield Part(path, model, digest=digests.of_text("\n".join(kinds)))
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        yield _tensor_part(f"{path}.{name}", each)
    trained = [name for name, each in model.named_modules() if each.training]
    # Parts of a model may be in another mode than the whole.
    yield Part(f"{path}.training", model.training, digest=digests.of_text("\n".join(trained)))


def _state(value: Any) -> Mapping[Any, Any] | None:
    """Return the state of an object, as attributes; ``None`` if it is not known."""
    if callable(getattr(value, "state_dict", None)) and hasattr(value, "load_state_dict"):
        state: Any = value.state_dict()
        return state if isinstance(state, dict) else None
    if (type(value).__reduce_ex__, type(value).__reduce__) != _PLAIN_WAYS:
        return None
    own = object.__getstate__(value)
    attributes, slots = own if isinstance(own, tuple) else (own, {})
    return {**(attributes or {}), **slots} if own or hasattr(value, "__dict__") else None


def _is_leaf(value: Any) -> bool:
    kinds = (type, types.ModuleType, types.BuiltinFunctionType, types.MethodType)
    # A thread reaches what Python and the rank know of all threads, and a stream, to which tqdm's
    # bar prints, the pipes of the rank.
    is_single = isinstance(value, (*kinds, threading.Thread, io.IOBase))
    return is_single or type_name(value).startswith(_LEAVES)


def _digest(value: Any) -> str:
    """Return the digest of a part; empty if none can be made."""
    kind = type_name(value)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return digests.of_tensor(value)
    if torch is not None and isinstance(value, torch.Generator):
        return digests.of_tensor(value.get_state())
    if numpy is not None and isinstance(value, numpy.ma.MaskedArray):
        data, mask = value.filled(), numpy.ma.getmaskarray(value)
        return digests.of_text(f"{digests.of_array(data)} {digests.of_array(mask)}")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return digests.of_array(numpy.asarray(value))
    if isinstance(value, float):
        return digests.of_bytes(struct.pack("<d", value))  # so that NaN equals itself
    if isinstance(value, complex):
        return digests.of_bytes(struct.pack("<dd", value.real, value.imag))
    if isinstance(value, bytes | bytearray):
        return digests.of_bytes(kind.encode(), value)
    if isinstance(value, (*_PLAIN, enum.Enum)):
        return digests.of_text(f"{kind} {value!r}")
    if isinstance(value, set | frozenset):
        each = sorted(_digest(item) for item in value)
        return "" if "" in each else digests.of_text(f"{kind} {each}")
    if isinstance(value, tuple):
        each = [_digest(item) for item in value]
        return "" if "" in each else digests.of_text(f"{kind} {each}")
    if isinstance(value, types.FunctionType):
        return digests.of_text(f"{value.__qualname__} {_digest(value.__code__)}")
    if isinstance(value, types.CodeType):
        constants = [_digest(each) for each in value.co_consts]
        names = (*value.co_names, *value.co_varnames)
        return digests.of_text(f"{digests.of_bytes(value.co_code)} {constants} {names}")
    if isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
        return digests.of_text(f"{getattr(value, '__module__', '')} {value.__name__}")
    if kind.startswith("pandas."):
        return _of_pandas(value)
    if isinstance(state := _random_state(value), tuple | dict):
        return digests.of_text(repr(_as_lists(state)))
    return _of_pickle(value)


class _File(io.BytesIO):
    """What a pickle is written to, as soon as there is much of it."""

    def write(self, data: Any) -> int:
        """Write, unless the time is over: built-in values do not come to `reducer_override`."""
        _check_time()
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Pickles values without what differs between processes: addresses of a tensor's storage."""

    def reducer_override(self, value: Any) -> Any:
        """Write the digest of a tensor or function in its place."""
        _check_time()
        if isinstance(value, threading.Thread):
            raise pickle.PicklingError
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return str, (_of_all(parts("", value)),)
        if isinstance(value, types.FunctionType):
            return str, (_of_function(value),)
        return NotImplemented


def _of_function(function: Any) -> str:
    """Return the digest of a function and all that it holds, within that of another value."""
    known = _of_functions.get()
    assert known is not None
    if id(function) not in known:
        known[id(function)] = function, _SEEN_ABOVE
        known[id(function)] = function, _of_all(_function_parts("", function, (id(function),)))
    return known[id(function)][1]


def _of_all(found: Iterator[Part]) -> str:
    """Return the digest of parts together; raise at the first one that has none."""
    each = []
    for part in found:
        seen = part.seen()
        if not seen["digest"]:
            raise pickle.PicklingError
        each.append((seen["path"], seen["what"], seen["digest"]))
    return digests.of_text(repr(each))


def _of_pickle(value: Any) -> str:
    file = _File()
    token = _of_functions.set({}) if _of_functions.get() is None else None
    try:
        _Pickler(file, protocol=4).dump(value)
    finally:
        if token is not None:
            _of_functions.reset(token)
    return digests.of_bytes(file.getvalue())


def _of_pandas(value: Any) -> str:
    pd: Any = sys.modules["pandas"]
    if isinstance(value, pd.DataFrame | pd.Series | pd.Index):
        index = value if isinstance(value, pd.Index) else value.index
        names = repr(list(value.columns)) if isinstance(value, pd.DataFrame) else repr(value.name)
        names += repr(list(index.names))
        types_of = repr(value.dtypes if hasattr(value, "dtypes") else value.dtype)
        hashed = pd.util.hash_pandas_object(value, index=True)
        return digests.of_bytes(
            names.encode(), types_of.encode(), digests.of_array(hashed.to_numpy()).encode()
        )
    return _of_pickle(value)


def _random_state(value: Any) -> Any:
    """Return the state of a random number generator, if the value is one."""
    with contextlib.suppress(Exception):  # a value may answer anything when it is asked
        if hasattr(value, "bit_generator"):
            return value.bit_generator.state
        if hasattr(value, "getstate"):
            return value.getstate()
        if type_name(value).endswith("RandomState"):
            return value.get_state()
    return None


def _as_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_lists(each) for key, each in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def random_states() -> dict[str, Any]:
    """Return the random number generators of this process, by name."""
    import random

    found: dict[str, Any] = {"python": digests.of_text(repr(random.getstate()))}
    if numpy := sys.modules.get("numpy"):
        state = [_as_lists(each) for each in numpy.random.get_state()]
        found["numpy"] = digests.of_text(repr(state))
    if torch := sys.modules.get("torch"):
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            found["torch.cuda"] = torch.cuda.get_rng_state()
    return found
