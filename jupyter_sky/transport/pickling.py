"""Pickling of values, for namespaces and results.

On top of cloudpickle, three things:

- large arrays and tensors stay where they are, as out-of-band buffers (pickle protocol 5);
- functions and classes of ``__main__`` travel without the globals that they use. They are bound to
  the receiver's ``__main__``, as a notebook's function is to its notebook, and the names that they
  need are reported, so that the sender can send those as names;
- what cannot be pickled is named with the path to it.
"""

from __future__ import annotations

import enum
import io
import linecache
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cloudpickle

from jupyter_sky.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True)
class Pickled:
    """A pickled value.

    Attributes
    ----------
    stream
        The pickle itself.
    buffers
        The contiguous memory of large arrays and tensors that the pickle refers to, in order.
    needs
        Names of ``__main__`` that functions and classes in the value use.
    sources
        Source text of the notebook's cells that functions in the value come from, by file name,
        for tracebacks.
    shared
        Identities of the mutable objects in the value, with the objects kept alive.
    """

    stream: bytes
    buffers: tuple[memoryview, ...] = ()
    needs: frozenset[str] = frozenset()
    sources: dict[str, str] = field(default_factory=dict)
    shared: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.stream) + sum(buffer.nbytes for buffer in self.buffers)


class _MainNamespace:
    """Stands for the receiver's ``__main__`` in a pickle."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return main_namespace, ()


def main_namespace() -> dict[str, Any]:
    """Return the globals of ``__main__``: the notebook's names, or a rank's."""
    return vars(sys.modules["__main__"])


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, buffers: list[memoryview]) -> None:
        super().__init__(
            file, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw())
        )
        self.needs: set[str] = set()
        self.files: set[str] = set()
        self._main = main_namespace()
        # Cloudpickle keeps here what stands for the globals of a function in the pickle.
        self.globals_ref[id(self._main)] = _MainNamespace()

    def _dynamic_function_reduce(self, func: types.FunctionType) -> Any:
        reduced = super()._dynamic_function_reduce(func)
        if func.__globals__ is self._main:
            attributes = reduced[2][1]
            self.needs.update(attributes["__globals__"])
            self.files.add(func.__code__.co_filename)
            attributes["__globals__"] = {}
        return reduced

    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__module__ == "torch.storage":
            reduced = _reduce_storage(obj)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)


def _reduce_storage(storage: Any) -> Any:
    """Reduce a torch storage to a buffer; tensors that share memory go on sharing it."""
    import torch

    if isinstance(storage, torch.storage.TypedStorage):
        return _typed_storage, (storage._untyped_storage, storage.dtype)
    if type(storage) is not torch.UntypedStorage or storage.device.type == "meta":
        return NotImplemented
    memory = torch.empty(0, dtype=torch.uint8).set_(storage.cpu())
    return _untyped_storage, (pickle.PickleBuffer(memory.numpy()),)


def _untyped_storage(memory: Buffer) -> Any:
    import torch

    if not memoryview(memory).nbytes:
        return torch.UntypedStorage(0)
    if memoryview(memory).readonly:
        memory = bytearray(memory)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def _typed_storage(storage: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def dump(value: Any, name: str = "this value") -> Pickled:
    """Pickle ``value``.

    Parameters
    ----------
    value
        Anything that cloudpickle takes.
    name
        What a person calls it, for the sentence when it cannot be pickled.

    Raises
    ------
    UsageError
        When it cannot be pickled, with the path to the part that is in the way.
    """
    file, buffers = io.BytesIO(), list[memoryview]()
    pickler = _Pickler(file, buffers)
    try:
        pickler.dump(value)
    except Exception as error:
        path, culprit, reason = _blame(value, name, error)
        raise UsageError(
            f"{path} cannot be sent to another process: {_reason(culprit, reason)} "
            f"Leave it out of the cell, or create it inside the cell."
        ) from error
    return Pickled(
        file.getvalue(),
        tuple(buffers),
        frozenset(pickler.needs),
        {name: text for name in pickler.files if (text := _cell_source(name))},
        _mutable_objects(pickler, value),
    )


def load(stream: Buffer, buffers: Iterable[Buffer] = ()) -> Any:
    """Return the value that ``dump`` pickled; arrays lie in ``buffers``, without a copy."""
    return pickle.loads(stream, buffers=buffers)


def _cell_source(name: str) -> str | None:
    # A cell has no file that the other side could read; only IPython's cache has its lines.
    entry = linecache.cache.get(name)
    if entry is None or len(entry) != 4 or entry[1] is not None:
        return None
    return "".join(entry[2])


_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType)
_MOST_SHARED = 100_000


def _mutable_objects(pickler: _Pickler, value: Any) -> dict[int, Any]:
    # The memo of the C pickler holds every object it has seen. Above a hundred thousand of them
    # the value is bulk data, and looking for an object shared with another name would cost more
    # than it is worth; the value itself still counts.
    memo = pickler.memo.copy()
    seen = [value, *(entry[1] for entry in memo.values())] if len(memo) < _MOST_SHARED else [value]
    return {id(obj): obj for obj in seen if _is_mutable(obj)}


def _is_mutable(obj: Any) -> bool:
    if isinstance(obj, (dict, list, set, bytearray)):
        return True
    if isinstance(obj, (*_CODE, enum.Enum)):
        return False
    return hasattr(obj, "__dict__") or type(obj).__name__ == "ndarray"


def _reason(culprit: Any, error: BaseException) -> str:
    text = str(error).strip().rstrip(".").splitlines()
    return f"it is a {type(culprit).__qualname__} ({text[0] if text else type(error).__name__})."


def _blame(
    value: Any, path: str, error: BaseException, depth: int = 8
) -> tuple[str, Any, BaseException]:
    """Follow the first part that cannot be pickled down to the object itself."""
    if depth:
        for step, part in _parts(value):
            try:
                _Pickler(io.BytesIO(), []).dump(part)
            except Exception as inner:
                return _blame(part, path + step, inner, depth - 1)
    return path, value, error


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items())[:1000])
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", part) for index, part in enumerate(value[:1000]))
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f" → {name}", cell.cell_contents
    elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items())
