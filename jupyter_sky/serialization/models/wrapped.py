"""Objects that torch has wrapped or compiled: DDP models, compiled code, computed weights.

Data loaders are here as well, since they refer to their workers, and what Accelerate has prepared.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
import types
from typing import TYPE_CHECKING, Any

from jupyter_sky.serialization.models import optimizers, prepared, sharded
from jupyter_sky.serialization.models.torch_kinds import is_module, is_optimizer, is_schedule

if TYPE_CHECKING:
    from typing_extensions import Buffer


_SAVED_BY_TORCH = (
    "torch.jit",
    "torch.jit._script",
    "torch.jit._trace",
    "torch.export.exported_program",
)


def reduce(obj: Any) -> Any:
    """Return what ``obj.__reduce__`` should, for an object that torch has wrapped.

    Parameters
    ----------
    obj
        Any object.

    Returns
    -------
    tuple
        As ``__reduce__`` returns; ``NotImplemented`` for others.
    """
    kind = type(obj)
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel and issubclass(kind, parallel.DistributedDataParallel):
        # The wrapper is bound to its process group and cannot leave its rank. A user who asks for
        # it wants the model inside.
        return _itself, (obj.module,)
    loaders = sys.modules.get("torch.utils.data.dataloader")
    if loaders and issubclass(kind, loaders.DataLoader) and obj._iterator is not None:
        return _without_workers(obj)
    if is_schedule(obj):
        return optimizers.reduce(obj)
    if is_optimizer(obj):
        return optimizers.reduce_optimizer(obj)
    if kind.__module__ == "torch._dynamo.eval_frame":
        return reduce_compiled(obj)
    if kind.__module__ == "torch.nn.utils.parametrize" and "parametrizations" in obj._modules:
        # Torch has made a class for this one module, for `weight_norm`.
        return _parametrized, (kind.__base__, vars(obj))
    if kind.__module__ in _SAVED_BY_TORCH:
        return _reduce_saved(obj)
    if is_module(obj) and prepared.is_prepared(vars(obj)) and not sharded.is_touched(obj):
        return _without_precision(obj)
    return NotImplemented


def _reduce_saved(made: Any) -> Any:
    """Reduce what TorchScript or `torch.export` has made to what torch saves of it."""
    import torch

    # Its value and not its buffer, with which Python 3.12 crashes when it collects garbage.
    file = io.BytesIO()
    if isinstance(made, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        torch.jit.save(made, file)
        return _load_script, (pickle.PickleBuffer(file.getvalue()),)
    if isinstance(made, torch.export.ExportedProgram):
        torch.export.save(made, file)
        return _load_exported, (pickle.PickleBuffer(file.getvalue()),)
    return NotImplemented


def _load_script(saved: Buffer) -> Any:
    import torch

    return torch.jit.load(io.BytesIO(saved), map_location="cpu")


def _load_exported(saved: Buffer) -> Any:
    import torch.export

    return torch.export.load(io.BytesIO(saved))


def _itself(obj: Any) -> Any:
    return obj


def _without_workers(loader: Any) -> Any:
    """Reduce a loader with ``persistent_workers``, which are started anew by the receiver."""
    make, arguments, state, *rest = loader.__reduce_ex__(5)
    return make, arguments, {**state, "_iterator": None}, *rest


def _without_precision(module: Any) -> Any:
    """Reduce a module to what it was before Accelerate prepared it for mixed precision."""
    match module.__reduce_ex__(5):
        case (make, arguments, dict() as state, *rest):
            return make, arguments, prepared.unprepared(type(module), state), *rest
    return NotImplemented


def reduce_compiled(compiled: Any) -> Any:
    """Reduce the result of `torch.compile`, which the receiver compiles again.

    Parameters
    ----------
    compiled
        A function or a module.

    Returns
    -------
    tuple
        As ``__reduce__`` returns; ``NotImplemented`` for objects that were not compiled.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None or "_torchdynamo_orig_callable" not in vars(compiled):
        return NotImplemented
    if isinstance(compiled, types.FunctionType):
        if vars(compiled).get("_torchdynamo_wrapper_id", id(compiled)) != id(compiled):
            return NotImplemented  # this one only wraps a compiled one
        original = compiled._torchdynamo_orig_callable  # type: ignore[attr-defined]
        free = inspect.getclosurevars(compiled).nonlocals
        context: Any = free.get("self")
    elif isinstance(compiled, frames.OptimizedModule):
        original, context = compiled._modules["_orig_mod"], compiled.dynamo_ctx
    else:
        return NotImplemented
    if type(context) is not frames.OptimizeContext:
        return NotImplemented
    inner = _inner(context.callback)
    # Before torch 2.7, only the class of the code translator tells.
    fullgraph = getattr(context, "fullgraph", type(inner).__name__ == "ConvertFrameAssert")
    while (backend := _inner(inner)) is not inner:
        inner = backend
    return _compiled, (original, backend, fullgraph, context._dynamic)


def _inner(backend: Any) -> Any:
    """Return what a part of torch's compiler calls; the innermost is the backend itself."""
    for name in ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable"):
        if hasattr(backend, name):
            return getattr(backend, name)
    return backend


def _compiled(original: Any, backend: Any, fullgraph: bool, dynamic: bool | None) -> Any:
    import torch

    return torch._dynamo.optimize(backend=backend, nopython=fullgraph, dynamic=dynamic)(original)


def _parametrized(kind: type, state: dict[str, Any]) -> Any:
    from torch.nn.utils import parametrize

    module: Any = object.__new__(kind)
    vars(module).update(state)
    parametrize._inject_new_class(module)
    for name in state["_modules"]["parametrizations"]:
        parametrize._inject_property(module, name)
    return module
