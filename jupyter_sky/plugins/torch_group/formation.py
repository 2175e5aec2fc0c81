"""torch's process group, formed by all ranks at once.

The store is our own TCPStore instead of ``env://``: it listens only on the head's address, on a
socket that is already bound, so that no other program can take the port.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.plugins._environment import environment_of_rank
from jupyter_sky.plugins._install import needs
from jupyter_sky.plugins.torch_group import former, lightning, subgroups
from jupyter_sky.plugins.torch_group.agreement import Backend, await_all_ranks
from jupyter_sky.plugins.torch_group.comparison import compare_replicas
from jupyter_sky.transport.present_run import calling_after_cut_off

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

_BOTH = "cpu:gloo,cuda:nccl"
"""What torch takes if it is asked for no backend, so that tensors may be on the processor too."""

_NCCL_ERRORS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""If a rank is lost, torch ends the others by default, with all that they have; with this, only
their collectives, and at once: it would wait a minute for files with records to be written."""

_CONNECT_WITHIN = 2.0  # seconds, for each attempt

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
    """Return the variables that torchrun sets, and the interface unless the user has chosen one."""
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
    unset = {name: value for name, value in _NCCL_ERRORS.items() if name not in os.environ}
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
    import torch
    import torch.distributed as dist

    # Its functions keep the group that there is when it is imported, also once there is another.
    import torch.distributed.nn.functional
    from torch.distributed import distributed_c10d as c10d

    device = None
    if torch.cuda.is_available():
        device = torch.device("cuda", info.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # Unless the user wants nothing but NCCL, which takes no tensors of the processor.
    has_gloo_beside = backend is None
    own: Backend = "nccl" if device and not info.shared_accelerators else "gloo"
    if backend == "nccl" and info.shared_accelerators:
        raise SkyError(
            f'backend="nccl" needs a GPU for each rank, and {info.local_world_size} ranks share '
            f'{format_count(info.accelerators, "GPU")} here: use backend="gloo", which takes '
            "CUDA tensors too, or fewer ranks."
        )
    if backend == "nccl" and device is None:
        raise SkyError('backend="nccl" needs a GPU, and this node has none: use backend="gloo".')

    try:
        store = _store(info, deadline)
        agreed = await_all_ranks(info, store, backend or own, deadline)
    except dist.DistError as error:
        raise SkyError(
            f"the head at {info.head_addr}:{info.head_port} was lost while the process group was "
            f"formed ({error})."
        ) from error
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


def _can_be_split(group: Any) -> bool:
    """Return whether torch can form the groups of a mesh out of this one.

    Torch 2.9 gives gloo the options of NCCL where a group has both, which gloo refuses.
    """
    return _torch_version() != (2, 9) or len(set(group._device_types)) < 2


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
    try:
        dist.destroy_process_group()
    except RuntimeError:  # it is broken, but torch must forget it before the next one
        with suppress(RuntimeError):
            c10d._abort_process_group()


# The store for the rendezvous


def _store(info: InstanceInfo, deadline: float) -> Store:
    import torch.distributed as dist

    connect = partial(
        dist.TCPStore,
        info.head_addr,
        info.head_port,
        info.world_size,
        is_master=info.is_head,
        wait_for_workers=False,
        multi_tenant=True,  # what meets by `env://`, like torch's RPC, meets at this server
        use_libuv=_libuv_takes_sockets(),
    )
    if info.is_head:
        # The store owns the socket from now on, and closes it with the group.
        fd = _listening_socket(info)
        store = connect(timeout=timedelta(seconds=deadline), master_listen_fd=fd)
    else:
        store = _connected(info, connect, deadline)
    return dist.PrefixStore(f"generation {info.generation}", store)


def _libuv_takes_sockets() -> bool:
    """Return whether the faster of torch's two servers accepts a socket that is already bound."""
    return _torch_version() >= (2, 8)


def _torch_version() -> tuple[int, int]:
    from torch import __version__

    major, minor, *_ = __version__.split(".")
    return int(major), int(minor)


def _connected(info: InstanceInfo, connect: Callable[..., TCPStore], deadline: float) -> TCPStore:
    """Return the head's store, once the head listens.

    TCPStore retries in C++, where no interrupt reaches it, until its time-out, although the head
    may have left again. So each attempt gets little time.
    """
    import torch.distributed as dist

    until = time.monotonic() + deadline
    while True:
        _await_head(info, max(until - time.monotonic(), 0.1))
        try:
            store = connect(timeout=timedelta(seconds=_CONNECT_WITHIN))
        except dist.DistError:
            if time.monotonic() > until:
                raise
        else:
            store.set_timeout(timedelta(seconds=deadline))
            return store


def _listening_socket(info: InstanceInfo) -> int:
    """Return the socket that the rank bound for this formation, or a new one at that address."""
    descriptor = os.environ.pop("JUPYTER_SKY_HEAD_FD", None)
    if descriptor is not None:
        return int(descriptor)
    family = socket.AF_INET6 if ":" in info.head_addr else socket.AF_INET
    address = (info.head_addr, info.head_port)
    return socket.create_server(address, family=family, backlog=info.world_size).detach()


def _await_head(info: InstanceInfo, deadline: float) -> None:
    """Wait until the head listens: TCPStore would, too, but logs a C++ stack each time."""
    until = time.monotonic() + deadline
    pause = 0.01
    while True:
        try:
            remaining = max(until - time.monotonic(), 0.1)
            socket.create_connection((info.head_addr, info.head_port), timeout=remaining).close()
        except OSError as error:
            if time.monotonic() + pause > until:
                raise SkyError(
                    f"rank {info.rank} cannot reach the head at {info.head_addr}:{info.head_port} "
                    f"within {deadline:g} s ({error.strerror or error}): check that rank 0 is "
                    f"running and that the nodes can connect to each other."
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
        else:
            return
