"""Reducers for objects that pickle would copy, refuse, or write differently each time.

A value is sent again if its pickle has changed, which overwrites changes that a rank has made. So a
pickle must not depend on caches that are filled by merely reading an object.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import cloudpickle

from jupyter_sky.serialization import sentinels, triton_kernels
from jupyter_sky.serialization.arrays import looked_at, memory_maps
from jupyter_sky.serialization.models import keras_models, singletons, wrapped
from jupyter_sky.serialization.module_reference import imported, is_lazy_import, reduce_module
from jupyter_sky.serialization.process import log_settings
from jupyter_sky.serialization.type_hints import lazy_annotations, typing_objects
from jupyter_sky.transport import present_run

if TYPE_CHECKING:
    from typing_extensions import Buffer


def reduce(obj: Any) -> Any:
    """Return what ``obj.__reduce__`` should return; ``NotImplemented`` to leave it to pickle.

    Parameters
    ----------
    obj
        Any object except a function or a class.
    """
    kind = type(obj)
    if kind is object:
        return sentinels.reduce(obj)
    if kind is types.CellType:
        return _reduce_cell(obj)
    if isinstance(obj, types.ModuleType):
        return reduce_module(obj)
    if is_lazy_import(obj):
        return imported, (obj.resolve(),)
    reducer = _BY_MODULE.get(kind.__module__) if isinstance(kind.__module__, str) else None
    if reducer is not None:
        return reducer(obj)
    if isinstance(obj, BaseException):
        return _with_dict(obj)
    reduced = keras_models.reduce(obj)
    return wrapped.reduce(obj) if reduced is NotImplemented else reduced


# The standard library


def _reduce_of_functools(obj: Any) -> Any:
    if isinstance(obj, functools.partial):
        return _with_dict(obj)
    if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":
        # A cached function of a module is pickled by reference. The cache's content is not pickled.
        return _cached, (obj.__wrapped__, obj.cache_parameters())
    if isinstance(obj, functools.cached_property):
        return _cached_property, (obj.func, obj.attrname)  # in Python 3.11, it has a lock
    return NotImplemented


def _with_dict(obj: Any) -> Any:
    # Their ``__dict__`` is created on first access, and pickled from then on.
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
    if type(obj) in (weakref.ReferenceType, weakref.WeakMethod):
        # What nothing else refers to at the receiver is gone there, as it would be here.
        target = obj()
        return (_dead_reference, ()) if target is None else (type(obj), (target,))
    return NotImplemented


def _dead_reference() -> weakref.ref[Any]:
    return weakref.ref(type("Gone", (), {})())


def _reduce_cell(cell: types.CellType) -> Any:
    """Reduce a closure's cell such that functions that share it still do when loaded."""
    try:
        content = cell.cell_contents
    except ValueError:
        return types.CellType, ()
    # The content is the state, which is set once the cell is in the memo, since it may refer to the
    # function that the cell belongs to.
    return types.CellType, (), (content,), None, None, _fill


def _fill(cell: types.CellType, content: tuple[Any]) -> None:
    [cell.cell_contents] = content


# Functions of the notebook


def reduce_function(function: types.FunctionType, reduced: Any) -> Any:
    """Correct how cloudpickle reduces a function of ``__main__``: the receiver may already have it.

    An object that refers to a function, such as an estimator or a model, must refer to the function
    that has its name at the receiver: pickle refuses any other, and so do `joblib.dump`,
    `torch.save` and `multiprocessing`.

    Parameters
    ----------
    function
        The function.
    reduced
        What cloudpickle has made of it.
    """
    # This must not depend on the name's value here: the pickle would change with it.
    if not _is_plain(function):
        return reduced
    make, arguments, state, *_ = reduced
    defaults = function.__defaults__, function.__kwdefaults__
    return _main_function, (make, arguments, defaults), state, None, None, _fill_new_function


def _is_plain(function: types.FunctionType) -> bool:
    """Return whether a function has nothing but code and constants."""
    code, keywords = function.__code__, function.__kwdefaults__ or {}
    return (
        not (function.__closure__ or vars(function))
        and function.__qualname__ == function.__name__ == code.co_name
        and code.co_name.isidentifier()
        and all(type(each) in _CONSTANTS for each in function.__defaults__ or ())
        and all(type(each) in _CONSTANTS for each in keywords.values())
    )


_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


def _main_function(make: Callable[..., Any], arguments: Any, defaults: Any) -> Any:
    """Make a function of ``__main__``, unless its name has the same function here."""
    code = arguments[0]
    main = vars(sys.modules["__main__"])
    key = code, repr(defaults)
    # An object that refers to it may arrive before the name.
    for known in (main.get(code.co_name), _received_functions.get(key)):
        if (
            isinstance(known, types.FunctionType)
            and known.__globals__ is main
            and _is_plain(known)
            and (known.__code__, repr((known.__defaults__, known.__kwdefaults__))) == key
        ):
            return known
    made = _received_functions[key] = make(*arguments)
    _new_functions.add(made)
    return made


_received_functions: weakref.WeakValueDictionary[Any, types.FunctionType] = (
    weakref.WeakValueDictionary()
)


_new_functions: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


def _fill_new_function(function: types.FunctionType, state: Any) -> None:
    if function in _new_functions:
        _new_functions.discard(function)
        cloudpickle.cloudpickle._function_setstate(function, state)


# torch


def _reduce_tensor(tensor: Any) -> Any:
    """Reduce a tensor of one of the newer types, such as float8, as `torch.save` would."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in torch.storage._new_dtypes():
        return NotImplemented
    make, arguments, *rest = tensor.__reduce_ex__(5)
    match arguments:
        case (torch.UntypedStorage() as storage, *others):
            # Torch looks for the memory in a typed storage, of whatever type.
            return make, (_typed_storage(storage, torch.uint8), *others), *rest
    return make, arguments, *rest


def _reduce_storage(storage: Any) -> Any:
    """Reduce a storage to a buffer on the CPU; tensors that share memory still share it.

    What was on the GPU of the notebook is on that of a rank. It comes home to the CPU, since a
    notebook may have no GPU, or too little memory on it for what all ranks have.
    """
    import torch

    if isinstance(storage, torch.storage.TypedStorage):
        return _typed_storage, (storage._untyped_storage, storage.dtype)
    if type(storage) is not torch.UntypedStorage or storage.device.type == "meta":
        return NotImplemented
    memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu())
    on_gpu = (True,) if storage.is_cuda else ()
    return _untyped_storage, (pickle.PickleBuffer(memory.numpy()), *on_gpu)


def _untyped_storage(memory: Buffer, was_on_gpu: bool = False) -> Any:
    import torch

    if memoryview(memory).readonly:
        memory = bytearray(memory)
    storage = torch.UntypedStorage(0)
    if memoryview(memory).nbytes:
        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return storage.cuda() if was_on_gpu and _takes_gpu() else storage


def _takes_gpu() -> bool:
    """Return whether this process is a rank that uses a GPU.

    Once a process has asked for its GPUs, those that are forked from it cannot use them.
    """
    import torch

    if "COMPUTE_POOL" not in os.environ or present_run.forks():
        return False
    return torch.cuda.is_available() and not torch.cuda._is_in_bad_fork()


def _typed_storage(storage: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _reduce_operator(operator: Any) -> Any:
    """Reduce ``torch.ops.aten.add``, or an overload of it, to its name."""
    import torch

    if isinstance(operator, torch._ops.OpOverload):
        return getattr, (operator.overloadpacket, operator._overloadname)
    if isinstance(operator, torch._ops.OpOverloadPacket):
        namespace, name = operator._qualified_op_name.split("::")
        return getattr, (getattr(torch.ops, namespace), name)
    return NotImplemented


# JAX


def _reduce_cache(cached: Any) -> Any:
    """Reduce a JAX function with a cache, to which results of ``jax.checkpoint`` refer."""
    # It does not know its own name.
    for owner, module in list(sys.modules.items()):
        if owner.startswith("jax."):
            for name, value in list(vars(module).items()):
                if value is cached:
                    return getattr, (module, name)
    return NotImplemented


def _reduce_custom_rule(function: Any) -> Any:
    """Reduce a function with a custom derivative, whose class requires the function."""
    if type(function).__name__ in ("custom_vjp", "custom_jvp"):
        return object.__new__, (type(function),), vars(function)
    return NotImplemented


def with_tree(kind: type, reduced: Any) -> Any:
    """Add to a reduced class that it is registered as a JAX pytree, if it is.

    Parameters
    ----------
    kind
        The class.
    reduced
        The reduced class.
    """
    trees = sys.modules.get("jax._src.tree_util")
    entry = trees and trees._registry.get(kind)
    if not entry or not isinstance(reduced, tuple) or len(reduced) != 6:
        return reduced
    fields: dict[str, Any] = {}
    if isinstance(entry.to_iter, types.FunctionType) and dataclasses.is_dataclass(kind):
        fields = dict(inspect.getclosurevars(entry.to_iter).nonlocals)
    how: Any = entry.to_iter, entry.from_iter
    if hasattr(kind, "tree_unflatten"):
        how = "with_keys" if hasattr(kind, "tree_flatten_with_keys") else "node"
    elif fields.keys() == {"data_fields", "meta_fields"}:
        how = fields
    *rest, fill = reduced
    return *rest, functools.partial(_fill_tree, fill, how)


def _fill_tree(fill: Callable[[type, Any], None], how: Any, kind: type, state: Any) -> None:
    import jax.tree_util

    fill(kind, state)
    if kind in sys.modules["jax._src.tree_util"]._registry:
        return
    match how:
        case "with_keys":
            jax.tree_util.register_pytree_with_keys_class(kind)
        case "node":
            jax.tree_util.register_pytree_node_class(kind)
        case dict():
            jax.tree_util.register_dataclass(kind, **how)
        case (flatten, unflatten):
            jax.tree_util.register_pytree_node(kind, flatten, unflatten)


_BY_MODULE: dict[str, Callable[[Any], Any]] = {
    "annotationlib": lazy_annotations.reduce_reference,
    "functools": _reduce_of_functools,
    "logging": log_settings.reduce,
    "typing": typing_objects.reduce,
    "typing_extensions": typing_objects.reduce,
    "weakref": _reduce_of_weakref,
    "accelerate.state": singletons.reduce,
    "torch": _reduce_tensor,
    "torch.storage": _reduce_storage,
    "torch._ops": _reduce_operator,
    "triton.runtime.jit": triton_kernels.reduce,
    "jax": _reduce_custom_rule,
    "jaxlib.weakref_lru_cache": _reduce_cache,
    "jax._src.custom_derivatives": _reduce_custom_rule,
    "matplotlib.cbook": looked_at.reduce_callbacks,
    "numpy": memory_maps.reduce,
    "numpy.ma": looked_at.reduce_masked,
    "numpy.ma.core": looked_at.reduce_masked,
    "pandas.arrays": looked_at.reduce_dates,
    "pandas.core.arrays.datetimes": looked_at.reduce_dates,
    "pandas.core.arrays.timedeltas": looked_at.reduce_dates,
    "pandas.core.arrays.period": looked_at.reduce_dates,
    "xarray.core.dataarray": looked_at.reduce_data_set,
    "xarray.core.dataset": looked_at.reduce_data_set,
    "xarray.core.variable": looked_at.reduce_data_set,
}


_computed: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()
"""The cached properties of classes."""


def cached_properties(kind: type) -> frozenset[str]:
    """Return the names of the `functools.cached_property` attributes of a class."""
    computed = _computed.get(kind)
    if computed is None:
        attributes = [item for base in kind.__mro__[:-1] for item in vars(base).items()]
        found = {name for name, value in attributes if isinstance(value, functools.cached_property)}
        computed = _computed[kind] = frozenset(found)
    return computed


def without_cached_properties(obj: Any, omitted: list[Mapping[str, object]]) -> Any:
    """Reduce an object without the values of its `functools.cached_property` attributes.

    Parameters
    ----------
    obj
        The object.
    omitted
        What tells these values from later ones is added here, by attribute.
    """
    computed = cached_properties(type(obj))
    if not computed:
        return NotImplemented
    match obj.__reduce_ex__(5):
        case (make, arguments, dict() as state, *rest):
            kept = {name: value for name, value in state.items() if name not in computed}
            caches = {name: value for name, value in state.items() if name in computed}
            plain = (type(None), bool, int, float, str)
            omitted.append(
                {name: each if type(each) in plain else id(each) for name, each in caches.items()}
            )
            return make, arguments, kept or None, *rest
    return NotImplemented
