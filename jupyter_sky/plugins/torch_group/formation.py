"""torch's process group, formed by all ranks at once."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.plugins._environment import environment_of_rank
from jupyter_sky.plugins._install import needs
from jupyter_sky.plugins.torch_group import former, launchers, lightning, subgroups
from jupyter_sky.plugins.torch_group.agreement import Agreed, Backend, await_all_ranks
from jupyter_sky.plugins.torch_group.comparison import compare_replicas
from jupyter_sky.plugins.torch_group.store import make_store, torch_version
from jupyter_sky.transport.present_run import calling_after_cut_off

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

_BOTH = "cpu:gloo,cuda:nccl"
"""What torch takes if it is asked for no backend, so that tensors may be on the processor too."""

_NCCL_ERRORS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""If a rank is lost, torch ends the others by default, with all that they have; with this, only
their collectives, and at once: it would wait a minute for files with records to be written."""

_WITHOUT_GPU = {"ACCELERATE_USE_CPU": "true"}
"""Without it, an `Accelerator` or a `Trainer` on a processor assumes that its rank is alone."""

_RPC_ENDS_WITHIN = 2.0  # seconds

_former: weakref.ref[Any] | None = None
"""The group that was left, which has sockets: it is kept only if something else refers to it."""

_is_replaced = True
"""Whether the present group has taken its place. If it could not, the next one has to."""


def check_backend(backend: object) -> None:
    """Refuse backends that `process_group` cannot use."""
    if backend not in ("nccl", "gloo", None):
        raise UsageError(f'backend={backend!r} is unknown: type "nccl", "gloo", or leave it out.')


def is_formed() -> bool:
    """Return whether this process is in a process group."""
    with needs("torch", '"jupyter-sky[local]"'):
        import torch.distributed as dist
    return bool(dist.is_initialized())


@contextmanager
def process_group(
    info: InstanceInfo,
    backend: Backend | None = None,
    deadline: float = 60.0,
    single_rank: bool = False,
) -> Iterator[None]:
    """Form the process group of the cluster around a block.

    Parameters
    ----------
    info
        The position of this rank.
    backend
        ``None`` for ``"nccl"`` if each rank has a GPU of its own, with gloo for tensors of the
        processor, and ``"gloo"`` otherwise.
    deadline
        Seconds to wait for all ranks, and again to connect them. After that, collectives have
        torch's own time-outs.
    single_rank
        Whether a single rank forms a group of one; otherwise it has no group.

    Raises
    ------
    SkyError
        If the group is not formed in time, naming the missing ranks, or if this process is already
        in a group.
    """
    if info.world_size < 2 and not single_rank:
        yield
        return
    if is_formed():
        raise SkyError(
            "this rank is in a process group already: end it with "
            "torch.distributed.destroy_process_group() first."
        )
    with environment_of_rank(_variables(info)), calling_after_cut_off(compare_replicas):
        try:
            _form(info, backend, deadline)
            yield
        finally:
            _leave()


def _variables(info: InstanceInfo) -> dict[str, str]:
    """Return the variables that torchrun sets, and others unless the user has chosen them."""
    import torch

    variables = {
        "MASTER_ADDR": info.head_addr,
        "MASTER_PORT": str(info.head_port),
        "WORLD_SIZE": str(info.world_size),
        "RANK": str(info.rank),
        "LOCAL_RANK": str(_gpu_number(info)),
        "LOCAL_WORLD_SIZE": str(info.local_world_size),
        "NODE_RANK": str(info.node),
    }
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if info.interface and name not in os.environ:
            variables[name] = info.interface
    others = _NCCL_ERRORS
    if info.world_size > 1 and not torch.cuda.is_available():
        others = others | _WITHOUT_GPU
    unset = {name: value for name, value in others.items() if name not in os.environ}
    return variables | unset


def _gpu_number(info: InstanceInfo) -> int:
    """Return the local rank in torchrun's sense: as an index of the visible GPUs.

    Under torchrun, each process sees all GPUs of its node; here, a rank sees only its own, and
    `torch.cuda.set_device(1)` would fail on the second rank. Its position on the node is in
    ``sky.instance_info().local_rank``.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not info.accelerators or not visible:
        return info.local_rank
    return info.local_rank % len(visible.split(","))


def _form(info: InstanceInfo, backend: Backend | None, deadline: float) -> None:
    """Form the group, and those beside it, in the place of the former ones."""
    import torch.distributed as dist

    # Its functions keep the group that there is when it is imported, also once there is another.
    from torch.distributed import distributed_c10d as c10d

    device = _set_device(info)
    _check_possible(info, backend, has_gpu=device is not None)
    # Unless the user wants nothing but NCCL, which takes no tensors of the processor.
    has_gloo_beside = backend is None
    own: Backend = "nccl" if device and not info.shared_accelerators else "gloo"
    store, agreed = _meet(info, backend or own, deadline)
    backend = agreed.backend
    # torch counts an aborted formation on some ranks and not on others, which would then look for
    # each other under different names.
    c10d._world.group_count = 0
    normal = c10d._get_default_timeout(backend)
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL, torch checks each collective in a group of its own.
    limit_stays = dist.get_debug_level() == dist.DebugLevel.DETAIL
    try:
        dist.init_process_group(
            _BOTH if backend == "nccl" and has_gloo_beside else backend,
            store=store,
            rank=info.rank,
            world_size=info.world_size,
            timeout=normal if limit_stays else timedelta(seconds=deadline),
            # With a device, NCCL connects the ranks now rather than in the first collective.
            device_id=device if backend == "nccl" else None,
        )
    except RuntimeError as error:
        raise SkyError(
            f"the process group could not be formed on the interface {info.interface!r} within "
            f"{deadline:g} s ({error}): set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME in the "
            "image's env if the nodes reach each other on another one."
        ) from error
    # What asks for the backend wants to know where its tensors belong: with `_BOTH` as the answer,
    # scripts would take the processor, and some functions of torch would refuse to work.
    world = c10d._world
    world.pg_map[dist.group.WORLD] = (dist.Backend(backend), world.pg_map[dist.group.WORLD][1])
    if not limit_stays:
        c10d._set_pg_timeout(normal)
    if not _can_be_split(dist.group.WORLD):
        dist.group.WORLD.bound_device_id = None  # then meshes form their groups in another way
    # Before their time limit is what it will be: a rank that is lost now is not waited for long.
    pairs = subgroups.form(agreed.groups, agreed.made, None if limit_stays else deadline)
    store.set_timeout(normal)
    _succeed(pairs)
    lightning.install()
    launchers.install()


def _set_device(info: InstanceInfo) -> torch.device | None:
    """Have torch use the rank's own GPU; return it, if there is one."""
    import torch

    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda", info.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _check_possible(info: InstanceInfo, backend: Backend | None, has_gpu: bool) -> None:
    """Refuse NCCL where ranks have no GPU each."""
    if backend == "nccl" and info.shared_accelerators:
        raise SkyError(
            f'backend="nccl" needs a GPU for each rank, and {info.local_world_size} ranks share '
            f'{format_count(info.accelerators, "GPU")} here: use backend="gloo", which takes '
            "CUDA tensors too, or fewer ranks."
        )
    if backend == "nccl" and not has_gpu:
        raise SkyError('backend="nccl" needs a GPU, and this node has none: use backend="gloo".')


def _meet(info: InstanceInfo, backend: Backend, deadline: float) -> tuple[Store, Agreed]:
    """Wait for all ranks; return the store that they share, and what they have agreed on."""
    import torch.distributed as dist

    try:
        store = make_store(info, deadline)
        agreed = await_all_ranks(info, store, backend, deadline)
        return dist.PrefixStore(f"formation {agreed.number}", store), agreed
    except dist.DistError as error:
        raise SkyError(
            f"the head at {info.head_addr}:{info.head_port} was lost while the process group was "
            f"formed ({error})."
        ) from error


def _can_be_split(group: Any) -> bool:
    """Return whether torch can form the groups of a mesh out of this one.

    Torch 2.9 gives gloo the options of NCCL where a group has both, which gloo refuses.
    """
    return torch_version() != (2, 9) or len(set(group._device_types)) < 2


def _succeed(pairs: list[tuple[Any, Any]]) -> None:
    """Put the group in the place of the former one, if there was one, as well as those beside it.

    Parameters
    ----------
    pairs
        Of those beside it, the former and the new ones.
    """
    import torch.distributed as dist

    global _is_replaced
    left = None if _former is None else _former()
    if left is not None:
        pairs = [*pairs, (left, dist.group.WORLD)]
    if pairs:
        former.replace(pairs)
    _is_replaced = True


def _leave() -> None:
    """Destroy the group, unless the user has done so or it was never formed."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    global _former, _is_replaced
    if not dist.is_initialized():
        return
    if _is_replaced:
        _former, _is_replaced = weakref.ref(dist.group.WORLD), False
        subgroups.remember()
    _end_rpc()
    try:
        dist.destroy_process_group()
    except RuntimeError:  # it is broken, but torch must forget it before the next one
        with suppress(RuntimeError):
            c10d._abort_process_group()


def _end_rpc() -> None:
    """End torch's RPC, if the user has begun it: its workers meet at the store of the group.

    Otherwise its end would wait for them there, where nobody is, and no interrupt reaches it.
    """
    api = sys.modules.get("torch.distributed.rpc.api")
    if api is None or not api._is_current_rpc_agent_set():
        return

    def end() -> None:
        with suppress(RuntimeError):  # others still have references to what is on this rank
            api.shutdown(graceful=False)

    # It waits for functions that others have called here.
    ending = threading.Thread(target=end, name="sky-rpc", daemon=True)
    ending.start()
    ending.join(_RPC_ENDS_WITHIN)
