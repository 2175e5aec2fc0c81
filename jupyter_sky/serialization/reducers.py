"""How objects are taken apart that pickle alone would copy, refuse, or write differently each time.

What a name holds is sent again when its pickle has changed, which overwrites what a rank did to it
since. So a pickle must not depend on caches that fill up while an object is only looked at.
"""

from __future__ import annotations

import functools
import pickle
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer


def reduce(obj: Any) -> Any:
    """Take ``obj`` apart as ``__reduce__`` does, or return ``NotImplemented`` to leave it to that.

    Parameters
    ----------
    obj
        Any object but a function or a class.
    """
    kind = type(obj)
    reducer = _BY_MODULE.get(kind.__module__) if isinstance(kind.__module__, str) else None
    if reducer is not None:
        return reducer(obj)
    if isinstance(obj, BaseException):
        return _with_dict(obj)
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel and issubclass(kind, parallel.DistributedDataParallel):
        # It is bound to the process group that it was made in, and so stays on its rank. What a
        # person means when they ask for a model is the model.
        return _itself, (obj.module,)
    return NotImplemented


# The standard library


def _reduce_of_functools(obj: Any) -> Any:
    if isinstance(obj, functools.partial):
        return _with_dict(obj)
    if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":
        # Elsewhere it can be imported. What is in the cache stays here.
        return _cached, (obj.__wrapped__, obj.cache_parameters())
    if isinstance(obj, functools.cached_property):
        return _cached_property, (obj.func, obj.attrname)  # Python 3.11 has a lock in it
    return NotImplemented


def _with_dict(obj: Any) -> Any:
    # The ``__dict__`` of these is made when somebody asks for it; from then on it is pickled too.
    _ = obj.__dict__
    return NotImplemented


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _reduce_of_weakref(obj: Any) -> Any:
    if type(obj) in (weakref.WeakKeyDictionary, weakref.WeakValueDictionary):
        return type(obj), (), None, None, iter(list(obj.items()))
    return NotImplemented


def reduce_cell(cell: types.CellType) -> Any:
    """Take a closure's cell apart so that functions which share it go on sharing it."""
    try:
        content = cell.cell_contents
    except ValueError:
        return types.CellType, ()
    # As a state, the content comes after the cell is known: it may lead back to the function.
    return types.CellType, (), (content,), None, None, _fill


def _fill(cell: types.CellType, content: tuple[Any]) -> None:
    [cell.cell_contents] = content


# torch


def _itself(obj: Any) -> Any:
    return obj


def _reduce_storage(storage: Any) -> Any:
    """Reduce a storage to a buffer, on the CPU; tensors that share memory go on sharing it."""
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


# numpy and pandas


def _reduce_masked(array: Any) -> Any:
    _ = array.fill_value  # which is filled in when it is first needed
    return NotImplemented


def _reduce_dates(array: Any) -> Any:
    """Leave out what arrays of dates have computed of themselves so far."""
    make, arguments, *rest = array.__reduce_ex__(5)
    match rest:
        case [(*values, {"_cache": _, **others})]:
            return make, arguments, (*values, others) if others else tuple(values)
    return NotImplemented


_BY_MODULE: dict[str, Callable[[Any], Any]] = {
    "functools": _reduce_of_functools,
    "weakref": _reduce_of_weakref,
    "torch.storage": _reduce_storage,
    "numpy.ma": _reduce_masked,
    "numpy.ma.core": _reduce_masked,
    "pandas.arrays": _reduce_dates,
    "pandas.core.arrays.datetimes": _reduce_dates,
    "pandas.core.arrays.timedeltas": _reduce_dates,
    "pandas.core.arrays.period": _reduce_dates,
}
