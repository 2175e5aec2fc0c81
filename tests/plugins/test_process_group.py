"""The process group, formed by real processes."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.instance import instance_info
from jupyter_sky.api.plugin_lifecycle import PluginLifecycle
from jupyter_sky.errors import SkyError
from jupyter_sky.plugins.torch_group import formation
from tests.api.conftest import topology
from tests.waiting import until

VARIABLES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "ACCELERATE_USE_CPU",
)


def sum_of_ranks() -> float:
    import torch
    import torch.distributed as dist

    value = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(value)
    return value.item()


def enter(life: PluginLifecycle) -> None:
    """Form a group that any rank may leave at once.

    One that has connected to the others may be there before those are, and they fail if it leaves:
    a cell begins only when all have said that they are there.
    """
    life.enter_app()
    sum_of_ranks()


def listening() -> list[str]:
    """Addresses that a program of this machine listens at, as the kernel writes them in hex."""
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows += Path("/proc/net/tcp6").read_text().splitlines()[1:]
    return [row.split()[1] for row in rows if row.split()[3] == "0A"]


# -- formed, left, formed again --------------------------------------------------------------------


def two_generations(join: Callable[[int], None]) -> dict[str, Any]:
    import torch.distributed as dist

    life = PluginLifecycle([sky.plugins.torch()])
    join(1)
    life.enter_process()
    life.enter_app()
    info = instance_info()
    assert info is not None
    at = [each for each in listening() if each.endswith(f":{info.head_port:04X}")]
    seen = {
        "backend": dist.get_backend(),
        "variables": {name: os.environ[name] for name in VARIABLES},
        "interface": os.environ["GLOO_SOCKET_IFNAME"],
        "port": info.head_port,
        "listening": at,
        "first": sum_of_ranks(),
    }
    life.exit_app()
    seen["left"] = not dist.is_initialized()
    seen["clean"] = not [name for name in (*VARIABLES, "GLOO_SOCKET_IFNAME") if name in os.environ]
    join(2)
    life.enter_app()
    seen["second"] = sum_of_ranks()
    life.exit_app()
    life.exit_process()
    return seen


def test_a_group_is_formed_left_and_formed_again(on_ranks: Any) -> None:
    ranks = on_ranks(two_generations, 3)
    for rank, seen in enumerate(ranks):
        assert seen["backend"] == "gloo"
        assert seen["first"] == seen["second"] == 3.0
        assert seen["left"] and seen["clean"]
        assert seen["interface"] == "lo"
        assert seen["listening"] == [f"0100007F:{seen['port']:04X}"]  # on loopback, nowhere else
        assert seen["variables"] == {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(seen["port"]),
            "WORLD_SIZE": "3",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(rank),
            "ACCELERATE_USE_CPU": "true",
        }


def alone(join: Callable[[int], None]) -> dict[str, Any]:
    import torch.distributed as dist

    join(1)
    seen = {}
    for single_rank in (False, True):
        life = PluginLifecycle([sky.plugins.torch(single_rank=single_rank)])
        life.enter_app()
        seen[single_rank] = (dist.is_initialized(), os.environ.get("WORLD_SIZE"))
        if single_rank:
            seen["sum"] = sum_of_ranks()
        life.exit_app()
    return seen


def test_a_single_rank_has_a_group_of_one_if_that_is_asked_for(on_ranks: Any) -> None:
    [seen] = on_ranks(alone, 1)
    assert seen == {False: (False, None), True: (True, "1"), "sum": 0.0}


def head_leaves_first(join: Callable[[int], None]) -> bool:
    life = PluginLifecycle([sky.plugins.torch()])
    join(1)
    enter(life)
    info = instance_info()
    assert info is not None
    life.exit_app()
    if not info.is_head:
        return True
    socket.create_server((info.head_addr, info.head_port)).close()
    return "JUPYTER_SKY_HEAD_FD" not in os.environ


def test_the_heads_socket_is_closed_with_the_group(on_ranks: Any) -> None:
    assert on_ranks(head_leaves_first, 2) == [True, True]


def without_a_socket(join: Callable[[int], None]) -> tuple[float, list[str]]:
    join(1)
    if descriptor := os.environ.pop("JUPYTER_SKY_HEAD_FD", None):
        os.close(int(descriptor))
    life = PluginLifecycle([sky.plugins.torch(backend="gloo")])
    life.enter_app()
    port = os.environ["MASTER_PORT"]
    at = [each for each in listening() if each.endswith(f":{int(port):04X}")]
    total = sum_of_ranks()
    life.exit_app()
    return total, at


def test_without_a_socket_the_head_binds_one_as_narrowly(on_ranks: Any) -> None:
    for total, at in on_ranks(without_a_socket, 2):
        assert total == 1.0
        assert [each.partition(":")[0] for each in at] == ["0100007F"]


def counted_by_hugging_face(join: Callable[[int], None]) -> list[Any]:
    from accelerate import Accelerator
    from transformers import TrainingArguments

    join(1)
    life = PluginLifecycle([sky.plugins.torch()])
    enter(life)
    found = [TrainingArguments(report_to=[]).world_size, Accelerator().num_processes]
    life.exit_app()
    os.environ["ACCELERATE_USE_CPU"] = "false"
    join(2)
    enter(life)
    found.append(os.environ["ACCELERATE_USE_CPU"])
    life.exit_app()
    return [*found, os.environ["ACCELERATE_USE_CPU"]]


def test_a_trainer_on_processors_counts_all_ranks(on_ranks: Any) -> None:
    assert on_ranks(counted_by_hugging_face, 2) == [[2, 2, "false", "false"]] * 2


# -- broken, or destroyed by the user --------------------------------------------------------------


def destroyed_by_the_user(join: Callable[[int], None]) -> float:
    import torch.distributed as dist

    life = PluginLifecycle([sky.plugins.torch()])
    join(1)
    enter(life)
    dist.destroy_process_group()
    life.exit_app()
    join(2)
    life.enter_app()
    return sum_of_ranks()


def test_a_group_that_the_user_destroyed_can_be_formed_again(on_ranks: Any) -> None:
    assert on_ranks(destroyed_by_the_user, 2) == [1.0, 1.0]


def broken_in_a_collective(join: Callable[[int], None]) -> float:
    """Break the group as a node does on Stop: close the connections while a collective waits."""
    life = PluginLifecycle([sky.plugins.torch()])
    join(1)
    enter(life)
    if os.environ["RANK"] != "2":
        breaking = threading.Timer(0.1, close_connections)
        breaking.start()
        with pytest.raises(RuntimeError):
            sum_of_ranks()
        breaking.join()
    life.exit_app()
    join(2)
    life.enter_app()
    return sum_of_ranks()


def close_connections() -> None:
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(descriptor.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                    connection.getpeername()  # fails for those that listen: leave them alone
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        connection.shutdown(socket.SHUT_RDWR)


def test_a_broken_group_can_be_left_and_formed_again(on_ranks: Any) -> None:
    assert on_ranks(broken_in_a_collective, 3) == [3.0, 3.0, 3.0]


# -- not formed ------------------------------------------------------------------------------------


def form(join: Callable[[int], None], deadline: float) -> None:
    join(1)
    PluginLifecycle([sky.plugins.torch(deadline=deadline)]).enter_app()


def test_a_rank_that_does_not_come_is_named(on_ranks: Any) -> None:
    # Time enough for the others, on a machine that has much to do.
    for error in on_ranks(form, 3, 10, absent=(2,)):
        assert isinstance(error, SkyError)
        assert "within 10 s: rank 2 (node 2 at 127.0.0.1) did not join" in str(error)
        assert "in plugin 'torch', around_app" in error.__notes__


def test_a_head_that_does_not_listen_is_named(on_ranks: Any) -> None:
    (error,) = on_ranks(form, 2, 1, absent=(0,))
    assert isinstance(error, SkyError)
    assert "rank 1 cannot reach the head at 127.0.0.1:" in str(error)


def stopped_while_it_waits(join: Callable[[int], None]) -> str:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    join(1)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        PluginLifecycle([sky.plugins.torch(deadline=100)]).enter_app()
    except KeyboardInterrupt:
        return os.environ.get("MASTER_ADDR", "as before")
    return "formed"


def test_stop_is_heard_while_ranks_are_awaited(on_ranks: Any) -> None:
    assert on_ranks(stopped_while_it_waits, 3, absent=(1, 2)) == ["as before"]
    assert on_ranks(stopped_while_it_waits, 3, absent=(0, 2)) == ["as before"]


def with_a_gpu_on_rank_1(join: Callable[[int], None]) -> tuple[str, float]:
    import torch
    import torch.distributed as dist

    join(1)
    info = instance_info()
    if info is not None and info.rank == 1:
        torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 1
        torch.cuda.set_device = lambda device: None
    life = PluginLifecycle([sky.plugins.torch()])
    enter(life)
    found = dist.get_backend(), sum_of_ranks()
    life.exit_app()
    return found


def test_unlike_hosts_take_the_backend_that_all_can_have(on_ranks: Any) -> None:
    assert on_ranks(with_a_gpu_on_rank_1, 3) == [("gloo", 3.0)] * 3


def checked_by_torch(join: Callable[[int], None]) -> Any:
    import warnings

    import torch
    import torch.distributed as dist

    join(1)
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    life = PluginLifecycle([sky.plugins.torch(deadline=50)])
    with warnings.catch_warnings(record=True) as warned:
        enter(life)
    limit = dist.group.WORLD._get_backend(torch.device("cpu")).wrapped_pg.options._timeout
    life.exit_app()
    return limit, dist.distributed_c10d.default_pg_timeout, [str(each.message) for each in warned]


def test_collectives_that_torch_checks_have_its_usual_limit(on_ranks: Any) -> None:
    for limit, usual, warned in on_ranks(checked_by_torch, 2):
        assert limit == usual
        assert warned == []


def form_with_nccl(join: Callable[[int], None]) -> None:
    join(1)
    PluginLifecycle([sky.plugins.torch(backend="nccl")]).enter_app()


def test_nccl_without_a_gpu_is_refused(on_ranks: Any) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for error in on_ranks(form_with_nccl, 2):
        assert 'use backend="gloo"' in str(error)


@pytest.mark.parametrize(
    ("version", "devices", "is_bound"),
    [("2.8.0+cu128", 2, True), ("2.9.1", 2, False), ("2.9.1", 1, True), ("2.13.0+cpu", 2, True)],
)
def test_only_torch_2_9_cannot_split_a_group_of_two_backends(
    monkeypatch: pytest.MonkeyPatch, version: str, devices: int, is_bound: bool
) -> None:
    monkeypatch.setattr("torch.__version__", version)
    group = SimpleNamespace(_device_types=["cuda", "cpu"][:devices])
    assert formation._can_be_split(group) == is_bound


def test_a_single_rank_forms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPUTE_POOL", topology(0, 1))
    monkeypatch.setitem(sys.modules, "torch", None)  # not even imported
    life = PluginLifecycle([sky.plugins.torch()])
    life.enter_app()
    assert "MASTER_ADDR" not in os.environ
    life.exit_app()


class _NoTorch(MetaPathFinder):
    """Finds no torch, as where it is not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")


def test_missing_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPUTE_POOL", topology(0, 2))
    for name in [each for each in sys.modules if each.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_NoTorch(), *sys.meta_path])
    with pytest.raises(
        SkyError, match="torch is not installed on this node: pip install"
    ) as raised:
        PluginLifecycle([sky.plugins.torch()]).enter_app()
    said = 'add `--pip torch` to the cell, or pip=["torch"] to the image of a pool.'
    assert said in str(raised.value)
    assert "MASTER_ADDR" not in os.environ


# -- around one function ---------------------------------------------------------------------------


@sky.integrations.torch
def total() -> float:
    return sum_of_ranks()


@sky.integrations.torch(backend="gloo")
def totals() -> Any:
    yield sum_of_ranks()
    yield sum_of_ranks()


@sky.integrations.torch
async def steps() -> AsyncGenerator[float, float]:
    got = yield sum_of_ranks()
    yield got + sum_of_ranks()


async def summed() -> list[float]:
    each = steps()
    return [await anext(each), await each.asend(10.0), *[value async for value in each]]


async def awaited() -> float:
    return sum_of_ranks()


def integrated(join: Callable[[int], None]) -> list[Any]:
    import asyncio

    import torch.distributed as dist

    join(1)
    seen = [total(), dist.is_initialized()]
    join(2)
    seen += [list(totals()), dist.is_initialized()]
    join(3)
    seen += [asyncio.run(summed()), dist.is_initialized()]
    return [*seen, asyncio.iscoroutinefunction(sky.integrations.torch(awaited))]


def test_the_integration_forms_a_group_and_destroys_it(on_ranks: Any) -> None:
    assert (
        on_ranks(integrated, 2) == [[1.0, False, [1.0, 1.0], False, [1.0, 11.0], False, True]] * 2
    )


kept: list[Any] = []


def trained() -> float:
    import torch

    if not kept:
        kept.append(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1)))
    kept[0](torch.ones(1, 2)).sum().backward()
    return sum_of_ranks()


def keeps_its_model(join: Callable[[int], None], failed: Path) -> list[float]:
    join(1)
    seen = [sky.integrations.torch(trained)() for _ in range(2)]
    if instance_info().is_head:
        with pytest.raises(SkyError, match="rank 1 .* did not join"):
            sky.integrations.torch(deadline=0.5)(trained)()
        failed.touch()
    until(failed.exists)
    return [*seen, sky.integrations.torch(trained)()]


def test_the_integration_forms_a_group_while_a_model_has_the_former_one(
    on_ranks: Any, tmp_path: Path
) -> None:
    assert on_ranks(keeps_its_model, 2, tmp_path / "failed") == [[1.0, 1.0, 1.0]] * 2


def integrated_in_a_formed_group(join: Callable[[int], None]) -> list[Any]:
    import torch.distributed as dist

    join(1)
    life = PluginLifecycle([sky.plugins.torch()])
    life.enter_app()
    seen = [total(), dist.is_initialized()]
    life.exit_app()
    return seen


def test_the_integration_leaves_the_plugins_group_alone(on_ranks: Any) -> None:
    assert on_ranks(integrated_in_a_formed_group, 2) == [[1.0, True]] * 2


def test_outside_a_cluster_the_integration_does_nothing() -> None:
    @sky.integrations.torch
    def here() -> str:
        return "here"

    assert here() == "here"
    assert here.__name__ == "here"


def test_the_integration_goes_below_compute() -> None:
    with pytest.raises(sky.UsageError, match="below @sky.compute"):
        sky.integrations.torch(sky.compute(sum_of_ranks))
    with pytest.raises(sky.UsageError, match='"nccl", "gloo"'):
        sky.integrations.torch(backend="mpi")  # type: ignore[call-overload]


def test_a_life_travels() -> None:
    life = pickle.loads(pickle.dumps(PluginLifecycle([sky.plugins.torch(), sky.plugins.joblib()])))
    assert [plugin.name for plugin in life.plugins] == ["torch", "joblib"]
    assert life.preload == ("torch",)
