"""Which reducer is for which objects.

A value is sent again if its pickle has changed, which overwrites changes that a rank has made. So a
pickle must not depend on caches that are filled by merely reading an object.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from jupyter_sky.serialization.models import keras_models, wrapped
from jupyter_sky.serialization.module_reference import imported, is_lazy_import, reduce_module
from jupyter_sky.serialization.process import log_settings
from jupyter_sky.serialization.reducers import (
    accelerate_state,
    jax_objects,
    lazy_annotations,
    looked_at,
    memory_maps,
    sentinels,
    standard_library,
    torch_objects,
    triton_kernels,
    typing_objects,
)


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
        return standard_library.reduce_cell(obj)
    if isinstance(obj, types.ModuleType):
        return reduce_module(obj)
    if is_lazy_import(obj):
        return imported, (obj.resolve(),)
    reducer = _BY_MODULE.get(kind.__module__) if isinstance(kind.__module__, str) else None
    if reducer is not None:
        return reducer(obj)
    if isinstance(obj, BaseException):
        return standard_library.with_dict(obj)
    reduced = keras_models.reduce(obj)
    return wrapped.reduce(obj) if reduced is NotImplemented else reduced


_BY_MODULE: dict[str, Callable[[Any], Any]] = {
    "annotationlib": lazy_annotations.reduce_reference,
    "argparse": standard_library.reduce_argparse,
    "dataclasses": standard_library.reduce_dataclasses,
    "functools": standard_library.reduce_functools,
    "logging": log_settings.reduce,
    "typing": typing_objects.reduce,
    "typing_extensions": typing_objects.reduce,
    "weakref": standard_library.reduce_weakref,
    "accelerate.state": accelerate_state.reduce,
    "torch": torch_objects.reduce_tensor,
    "torch.storage": torch_objects.reduce_storage,
    "torch._ops": torch_objects.reduce_operator,
    "triton.runtime.jit": triton_kernels.reduce,
    "datasets.table": memory_maps.reduce_table,
    "jax": jax_objects.reduce_custom_rule,
    "jaxlib.weakref_lru_cache": jax_objects.reduce_cache,
    "jax._src.custom_derivatives": jax_objects.reduce_custom_rule,
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
