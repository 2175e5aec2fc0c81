"""The process groups that torch knows in this process, and what they use for each type of devices.

What they do with NCCL can be ended from another thread, and asked whether it has failed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any


def is_formed() -> bool:
    """Return whether this process is in a process group."""
    # A torch without `distributed` lacks the function. This is asked after each run.
    is_initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def groups() -> Iterator[tuple[str, Any]]:
    """Yield the groups, with torch's names for them."""
    if not is_formed():
        return
    distributed = sys.modules["torch.distributed"]
    for group, name in list(distributed.distributed_c10d._world.pg_names.items()):
        yield name, group


def backends(group: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a group uses, by type of devices."""
    for device in group._device_types:
        with contextlib.suppress(RuntimeError):  # it is not made yet
            yield device.type, group._get_backend(device)


def abort_nccl() -> None:
    """Abort what all groups do with NCCL; unlike `_abort_process_group`, torch still knows them.

    All are aborted at once. Each abort waits until its GPU is idle, which may need the abort of
    another group, and a group of a mesh has no name that tells which one comes first. What NCCL has
    for this (``ncclGroupStart``) counts in one thread, and torch aborts each group in another.
    """
    threads = [Thread(target=_abort, args=(each,), daemon=True) for each in _of_nccl()]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def _abort(backend: Any) -> None:
    with contextlib.suppress(Exception):  # of any kind: it may be aborted already
        backend.abort()


def raise_failed() -> None:
    """Raise an error if a collective of NCCL has failed.

    NCCL works on the GPU, after Python has gone on: if the code calls no further collective, it
    does not notice.

    Raises
    ------
    RuntimeError
        If there is one, since its tensors have no valid values.
    """
    for each in _of_nccl():
        error = each.get_error().name
        if error != "SUCCESS":
            what = "has timed out" if error == "TIMEOUT" else "was aborted"
            raise RuntimeError(
                f"a collective of NCCL {what}: its tensors have no valid values here."
            )


def _of_nccl() -> list[Any]:
    """Return what groups use for GPUs, where that is NCCL; the newest group's first."""
    kind = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "ProcessGroupNCCL", None)
    if kind is None:
        return []
    newest_first = sorted(groups(), key=lambda each: each[0], reverse=True)
    on_gpu = [dict(backends(group)).get("cuda") for _, group in newest_first]
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL, it is in one that checks what is called.
    found = [getattr(each, "wrapped_pg", each) for each in on_gpu]
    return [each for each in found if isinstance(each, kind)]
