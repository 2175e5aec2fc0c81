"""Tensors of torch and their memory, and its operators.

Each function returns what ``__reduce__`` should, or ``NotImplemented`` to leave it to pickle.
"""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

from jupyter_sky.transport import present_run

if TYPE_CHECKING:
    from typing_extensions import Buffer


def reduce_tensor(tensor: Any) -> Any:
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


def reduce_storage(storage: Any) -> Any:
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


def reduce_operator(operator: Any) -> Any:
    """Reduce ``torch.ops.aten.add``, or an overload of it, to its name."""
    import torch

    if isinstance(operator, torch._ops.OpOverload):
        return getattr, (operator.overloadpacket, operator._overloadname)
    if isinstance(operator, torch._ops.OpOverloadPacket):
        namespace, name = operator._qualified_op_name.split("::")
        return getattr, (getattr(torch.ops, namespace), name)
    return NotImplemented
