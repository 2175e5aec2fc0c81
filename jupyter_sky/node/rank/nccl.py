"""What this process does with NCCL: ended from another thread, and asked whether it has failed."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def abort() -> None:
    """Abort what all groups do with NCCL; unlike `_abort_process_group`, torch still knows them."""
    backends = _backends()
    if not backends:
        return
    backends[0]._group_start()
    for each in backends:
        each.abort()
    backends[0]._group_end()


def raise_failed() -> None:
    """Raise an error if a collective of NCCL has failed.

    NCCL works on the GPU, after Python has gone on: if the code calls no further collective, it
    does not notice.

    Raises
    ------
    RuntimeError
        If there is one, since its tensors have no valid values.
    """
    for each in _backends():
        error = each.get_error().name
        if error != "SUCCESS":
            what = "has timed out" if error == "TIMEOUT" else "was aborted"
            raise RuntimeError(
                f"a collective of NCCL {what}: its tensors have no valid values here."
            )


def _backends() -> list[Any]:
    """Return what groups use for GPUs, where that is NCCL; the newest group's first."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    kind = getattr(c10d, "ProcessGroupNCCL", None)
    if c10d is None or kind is None:
        return []
    names = dict(c10d._world.pg_names)
    found = []
    for group in sorted(names, key=lambda each: names[each], reverse=True):
        with contextlib.suppress(RuntimeError):  # it has no backend for GPUs
            backend = group._get_backend(c10d.torch.device("cuda"))
            # With TORCH_DISTRIBUTED_DEBUG=DETAIL, it is in one that checks what is called.
            found.append(getattr(backend, "wrapped_pg", backend))
    return [each for each in found if isinstance(each, kind)]
