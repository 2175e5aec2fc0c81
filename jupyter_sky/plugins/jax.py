"""JAX: its wheels on the nodes, and ranks connected to one set of devices."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from jupyter_sky.api import accelerators
from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._environment import environment, environment_of_rank
from jupyter_sky.plugins._install import install, needs, requirement
from jupyter_sky.providers.spec import Image

_SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Variables for ranks that share a GPU, and for programs that these start: the first one would take
three quarters of its memory. Each rank also has an `NCCL_HOSTID` of its own, since NCCL refuses
ranks of the same host on one GPU."""


def jax(version: str = "latest", cuda: str = "cuda12", *, deadline: float = 60.0) -> Plugin:
    """Install JAX on the nodes, and connect the ranks so that each sees the devices of all.

    A program leaves ``jax.distributed.initialize()`` out, or calls it only if
    ``jax.distributed.is_initialized()`` says that the process is not connected.

    JAX connects its processes only once: if a rank is lost or nodes are added, all ranks restart
    with empty namespaces. After a Stop, or the error of a rank, while others wait in a collective,
    ranks keep their variables (on processors, not on GPUs), but further collectives fail until
    ``%sky restart``.

    Parameters
    ----------
    version
        ``"latest"``, a version like ``"0.5.0"``, or a constraint like ``">=0.5"``.
    cuda
        JAX's extra for nodes with an NVIDIA GPU; other nodes use JAX for the CPU.
    deadline
        Seconds to wait until the ranks are connected.

    Raises
    ------
    UsageError
        If ``version`` or ``cuda`` is invalid.
    """
    if not isinstance(cuda, str) or not re.fullmatch(r"cuda\d{2}", cuda):
        raise UsageError(f'cuda={cuda!r} is not an extra of JAX: type one like cuda="cuda12".')
    packages = [requirement(name, version) for name in (f"jax[{cuda}]", "jax")]
    return Plugin(
        "jax",
        transform=partial(_install_jax, for_cuda=packages[0], for_cpu=packages[1]),
        around_app=partial(_distributed, deadline=deadline),
        preload=("jax",),  # all ranks restart for each group: preloading saves the import
        reforms=False,
        connects="jax",
    )


def _install_jax(image: Image, cluster: Any, for_cuda: str, for_cpu: str) -> Image:
    accelerator = cluster.spec.accelerator
    if isinstance(accelerator, str):
        accelerator = accelerators.parse(accelerator)
    return install(image, [for_cuda if accelerator and accelerator.cuda else for_cpu])


@contextmanager
def _distributed(info: InstanceInfo, deadline: float) -> Iterator[None]:
    if info.world_size < 2:
        yield
        return
    with needs("jax", "jax"):
        import jax

    # JAX binds the port itself, so close the socket that reserved it.
    if info.is_head and (descriptor := os.environ.pop("JUPYTER_SKY_HEAD_FD", None)):
        os.close(int(descriptor))
    coordinator = f"{info.head_addr}:{info.head_port}"
    devices = max(1, info.accelerators // info.local_world_size)  # the node has set which ones
    variables = {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(info.world_size),
        "JAX_PROCESS_ID": str(info.rank),
        "JAX_LOCAL_DEVICE_COUNT": str(devices),
    }
    shared = {}
    if info.shared_accelerators:
        shared = {name: value for name, value in _SHARED.items() if name not in os.environ}
        if "NCCL_HOSTID" not in os.environ:
            variables["NCCL_HOSTID"] = f"{info.head_addr} {info.rank}"
    with environment(shared), environment_of_rank(variables):
        jax.distributed.initialize(
            coordinator,
            num_processes=info.world_size,
            process_id=info.rank,
            coordinator_bind_address=coordinator if info.is_head else None,
            initialization_timeout=math.ceil(deadline),
        )
        connect = jax.distributed.initialize
        jax.distributed.initialize = _refuse
        try:
            yield
        finally:
            jax.distributed.initialize = connect
            jax.distributed.shutdown()


def _refuse(*args: Any, **kwargs: Any) -> None:
    """Stand for ``jax.distributed.initialize`` in programs that were written for other launchers.

    JAX itself would only say that it must be called before any computation.
    """
    raise UsageError(
        "the ranks are connected already, and JAX connects a process only once: leave "
        "`jax.distributed.initialize()` out, or begin its line with "
        "`if not jax.distributed.is_initialized():`."
    )
