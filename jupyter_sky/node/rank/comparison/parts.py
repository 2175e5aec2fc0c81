"""The parts of a value, each with its digest: the parameters of a model, the items of a list.

Nothing is imported for this: torch or NumPy values only exist where these are loaded.
"""

from __future__ import annotations

import contextlib
import enum
import pickle
import struct
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_sky.node.rank.comparison import digests
from jupyter_sky.node.rank.comparison.describe import plain, type_name, words
from jupyter_sky.transport.protocol.inspection import PARTS_COMPARED, SeenPart

_LONG = 500  # items above which a list of numbers is a single part
_DEEPEST = 40
_LONGEST = 200  # characters of a path
_LEAVES = ("numpy.", "pandas.", "random.", "torch.dtype", "torch.device", "torch._C.")
_PLAIN_OBJECT: Any = object.__reduce_ex__
_SCALARS = (float, complex, enum.Enum, set, frozenset)
_PLAIN = (int, str, bytes, bytearray, bool, type(None), range, slice, type(...))


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
        except Exception:  # it cannot be pickled: only its name is compared
            digest = ""
        return {
            "path": self.path[:_LONGEST],
            "what": words(self.value),
            "digest": digest,
            "sharded": self.sharded,
        }


def parts(name: str, value: Any) -> Iterator[Part]:
    """Yield the parts of a value, the outermost first, in the same order on each rank."""
    yield from _walk(name, value, ())


def find(name: str, value: Any, path: str) -> Any:
    """Return the part at a path; ``None`` if it no longer exists."""
    for at, part in enumerate(parts(name, value)):
        if part.path[:_LONGEST] == path or at >= PARTS_COMPARED:
            return part.value
    return None


def _walk(path: str, value: Any, above: tuple[int, ...]) -> Iterator[Part]:
    if id(value) in above or len(above) > _DEEPEST:
        yield Part(path, value, digest="seen above")
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
        if isinstance(value, dict):
            yield from _attributes(inner, value, above)
        else:
            yield from _walk(inner, value, above)


def _key(key: Any) -> str:
    return plain(repr(key) if isinstance(key, str | int | float | tuple) else type_name(key))


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
    yield Part(f"{path}.training", model.training)


def _state(value: Any) -> Mapping[Any, Any] | None:
    """Return the state of an object, as attributes; ``None`` if it is not known."""
    if callable(getattr(value, "state_dict", None)) and hasattr(value, "load_state_dict"):
        state: Any = value.state_dict()
        return state if isinstance(state, dict) else None
    has_own_way = type(value).__reduce_ex__ is not _PLAIN_OBJECT
    return None if has_own_way else getattr(value, "__dict__", None)


def _is_leaf(value: Any) -> bool:
    kinds = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
    return isinstance(value, (*kinds, types.MethodType)) or type_name(value).startswith(_LEAVES)


def _digest(value: Any) -> str:
    """Return the digest of a part; empty if none can be made."""
    kind = type_name(value)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return digests.of_tensor(value)
    if torch is not None and isinstance(value, torch.Generator):
        return digests.of_tensor(value.get_state())
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
        code = value.__code__
        names = repr(code.co_names).encode()
        return digests.of_bytes(value.__qualname__.encode(), code.co_code, names)
    if isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
        return digests.of_text(f"{getattr(value, '__module__', '')} {value.__name__}")
    if kind.startswith("pandas."):
        return _of_pandas(value)
    if isinstance(state := _random_state(value), tuple | dict):
        return digests.of_text(repr(_as_lists(state)))
    return digests.of_bytes(pickle.dumps(value, protocol=4))


def _of_pandas(value: Any) -> str:
    pd: Any = sys.modules["pandas"]
    if isinstance(value, pd.DataFrame | pd.Series | pd.Index):
        names = repr(list(value.columns)) if isinstance(value, pd.DataFrame) else repr(value.name)
        types_of = repr(value.dtypes if hasattr(value, "dtypes") else value.dtype)
        hashed = pd.util.hash_pandas_object(value, index=True)
        return digests.of_bytes(
            names.encode(), types_of.encode(), digests.of_array(hashed.to_numpy()).encode()
        )
    return digests.of_bytes(pickle.dumps(value, protocol=4))


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
