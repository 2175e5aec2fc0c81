"""What needs more than one GPU, or one that is divided (MIG).

NCCL refuses two ranks of a host on one GPU. Ranks that it takes for those of two hosts may share
one, and reach each other over sockets: so its groups are shown on a machine with one GPU, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.cluster.profiling.trace import trace
from jupyter_sky.cluster.runs.task import Task
from tests.cluster.cells import Cells
from tests.gpu.checks.test_pinning import UUID
from tests.gpu.checks.test_stop import PREPARE, stopped
from tests.gpu.figures import Check
from tests.gpu.machine import GPUMachine, parts
from tests.waiting import until

Make = Callable[..., Cells]


DEADLINE = 6.0
"""Seconds that the ranks have to form a group."""


@dataclass(frozen=True)
class Connected:
    """Ranks in a group of NCCL, and the UUID of each one's GPU."""

    cells: Cells
    gpus: list[str]

    @property
    def size(self) -> int:
        return len(self.gpus)

    @property
    def pids(self) -> list[int | None]:
        return [rank.pid for rank in self.cells.cluster.state.ranks]

    def assert_goes_on(self) -> None:
        """Show that the group is whole, on GPU and processor, and that variables were kept."""
        self.cells.run(
            "x, y = torch.ones(1, device='cuda'), torch.ones(1)\n"
            "dist.all_reduce(x)\ndist.all_reduce(y)"
        )
        found = self.cells.ask("(x.item(), y.item(), kept.tolist())")
        assert found == [(self.size, self.size, [0, 1, 2, 3])] * self.size


def _of_a_host(info: sky.InstanceInfo) -> Iterator[None]:
    os.environ["NCCL_HOSTID"] = f"host {info.rank}"
    yield


@pytest.fixture(params=["several GPUs", "one GPU as of two hosts"])
def connected(
    request: pytest.FixtureRequest,
    cluster: Make,
    gpu: GPUMachine,
    monkeypatch: pytest.MonkeyPatch,
) -> Connected:
    plugin = sky.plugins.torch(deadline=DEADLINE)
    gpus = [each.uuid for each in gpu.gpus]
    if request.param == "several GPUs":
        if len(gpus) < 2:
            pytest.skip("this machine has one GPU")
    else:
        gpus = [gpus[0]] * 2
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"0,{gpus[0]}")
        plugin = replace(plugin, around_process=_of_a_host)
    cells = cluster(1, framework=plugin)
    cells.run(PREPARE)
    return Connected(cells, gpus)


def test_nccl_connects_ranks_that_have_a_gpu_each(connected: Connected) -> None:
    cells = connected.cells
    assert cells.ask("dist.get_backend()") == ["nccl"] * connected.size
    assert cells.ask(UUID) == connected.gpus
    connected.assert_goes_on()
    cells.run("all = [None] * dist.get_world_size()\ndist.all_gather_object(all, rank)")
    assert cells.ask("all") == [list(range(connected.size))] * connected.size


def test_stop_in_a_collective_that_waits_for_a_rank(connected: Connected, check: Check) -> None:
    cells, pids = connected.cells, connected.pids
    cells.run(
        "from torch.nn.parallel import DistributedDataParallel\n"
        "torch.manual_seed(rank)\n"
        "model = DistributedDataParallel(torch.nn.Linear(8, 1).cuda())"
    )
    code = (
        "x = torch.ones(8, device='cuda')\n"
        "if rank:\n    time.sleep(600)\n"
        "dist.all_reduce(x); torch.cuda.synchronize()"
    )
    taken = stopped(cells, code)
    check.note(f"{taken:.2f} s")
    assert connected.pids == pids
    connected.assert_goes_on()
    # What was made with the former group goes on with the one in its place.
    cells.run("model(torch.full((4, 8), rank + 1.0, device='cuda')).sum().backward()")
    first, *others = cells.ask("model.module.weight.grad.tolist()")
    assert all(each == first for each in others)
    assert taken < 3


def test_stop_in_a_collective_of_the_processor(connected: Connected, check: Check) -> None:
    pids = connected.pids
    code = "if rank:\n    time.sleep(600)\ndist.all_reduce(torch.ones(8))"
    taken = stopped(connected.cells, code)
    check.note(f"{taken:.2f} s")
    assert connected.pids == pids
    connected.assert_goes_on()
    assert taken < 3


def test_where_tells_who_waits_on_the_gpu(connected: Connected, check: Check) -> None:
    cells = connected.cells
    # Those of the processor have numbers of their own.
    cells.run(
        "for step in range(3):\n    dist.all_gather_object([None] * dist.get_world_size(), 1)"
    )
    run = cells.start(
        "x = torch.ones(8, device='cuda')\n"
        "if rank:\n    time.sleep(600)\n"
        "dist.all_reduce(x); torch.cuda.synchronize()"
    )
    said: list[str] = []

    def is_said() -> bool:
        said.append(cells.cluster.where().sentence)
        return said[-1].startswith("rank 0 waits in all_reduce")

    try:
        until(is_said)
    finally:
        check.note(said[-1])
        cells.cluster.interrupt_run(run.id)
        run.follow()
    assert "do not belong together" not in said[-1]


MESH = """
from torch.distributed.device_mesh import init_device_mesh
shape = dist.get_world_size(), 1
mesh = init_device_mesh('cuda', shape, mesh_dim_names=('data', 'model'))
own = dist.new_group()
groups = [dist.group.WORLD, mesh.get_group('data'), mesh.get_group('model'), own]
"""

REDUCE = """
x = torch.ones(1, device='cuda')
for group in groups:
    dist.all_reduce(x, group=group)
"""


@pytest.mark.parametrize("waits", ["mesh.get_group('data')", "own"])
def test_groups_of_a_mesh_and_of_the_users_own_go_on_after_a_stop(
    connected: Connected, check: Check, waits: str
) -> None:
    cells, pids = connected.cells, connected.pids
    cells.run(MESH)
    cells.run(REDUCE)
    assert cells.ask("x.item()") == [connected.size**3] * connected.size
    wait = "if rank:\n    time.sleep(600)\n"
    taken = stopped(cells, f"{wait}dist.all_reduce(x, group={waits}); x.item()")
    check.note(f"{taken:.2f} s")
    assert connected.pids == pids
    cells.run(REDUCE)
    assert cells.ask("x.item()") == [connected.size**3] * connected.size


def test_a_profile_has_the_time_of_collectives(connected: Connected) -> None:
    code = "x = torch.ones(2**24, device='cuda')\ndist.all_reduce(x); torch.cuda.synchronize()"
    connected.cells.run(code)
    cluster = connected.cells.cluster
    run = cluster.run(Task(cluster.all_ranks, code=code, records=("torch",)))
    run.follow()
    run.values()
    found = trace(cluster.profiler.recorded(run.id, "torch", cluster.all_ranks))
    collectives = [each for each in found.operations(40) if each.name.startswith("nccl")]
    assert min(each.calls for each in collectives) == connected.size


def test_a_collective_may_take_longer_than_the_group_had_to_form(connected: Connected) -> None:
    code = f"if rank:\n    time.sleep({DEADLINE + 2})\n"
    code += "x = torch.ones(8, device='cuda')\ndist.all_reduce(x)"
    connected.cells.run(code)
    assert connected.cells.ask("x[0].item()") == [connected.size] * connected.size


def test_a_collective_that_takes_too_long_is_an_error_and_ranks_go_on(
    connected: Connected, check: Check
) -> None:
    pids = connected.pids
    code = (
        "from datetime import timedelta\n"
        "group = dist.new_group(timeout=timedelta(seconds=2))\n"
        "x = torch.ones(8, device='cuda')\ndist.all_reduce(x, group=group)\n"
        "torch.cuda.synchronize()\n"
        "if rank:\n    time.sleep(6)\n"
        "dist.all_reduce(x, group=group)\ntorch.cuda.synchronize()\nprint(x[0].item())"
    )
    with pytest.raises(RuntimeError, match="NCCL") as caught:
        connected.cells.run(code, show=range(connected.size))
    check.note(f"{str(caught.value).splitlines()[0][:120]} {connected.cells.text()}")
    assert connected.pids == pids
    connected.assert_goes_on()


def test_a_sharded_model_comes_home_whole(connected: Connected) -> None:
    cells = connected.cells
    step = (
        "optimizer.zero_grad()\n"
        "model(torch.randn(8, 16, device='cuda')).square().mean().backward()\n"
        "optimizer.step()"
    )
    cells.run(
        "from torch.distributed.fsdp import fully_shard\n"
        "model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)).cuda()\n"
        f"fully_shard(model)\noptimizer = torch.optim.Adam(model.parameters())\n{step}"
    )
    home = cells.run("pass", values={0: ["model"]})[0]["model"]
    found = {name: (tuple(each.shape), each.device.type) for name, each in home.named_parameters()}
    assert found["0.weight"] == ((32, 16), "cpu")
    assert found["1.bias"] == ((4,), "cpu")
    cells.run(step)


def test_an_error_on_one_rank_ends_what_the_others_wait_for(connected: Connected) -> None:
    pids = connected.pids
    code = (
        "if rank:\n    raise ValueError('no data')\n"
        "x = torch.ones(8, device='cuda')\ndist.all_reduce(x); torch.cuda.synchronize()"
    )
    with pytest.raises(ValueError, match="no data"):
        connected.cells.run(code)
    assert connected.pids == pids
    connected.assert_goes_on()


def test_a_rank_that_is_lost_in_a_collective_takes_no_other_with_it(connected: Connected) -> None:
    first = connected.pids[0]
    code = (
        "import os, signal\n"
        "x = torch.ones(2**20, device='cuda')\n"
        "for step in range(10**9):\n"
        "    if rank == 1 and step == 100:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    dist.all_reduce(x); torch.cuda.synchronize()"
    )
    with pytest.raises(RankLost, match="rank 1"):
        connected.cells.run(code)
    assert connected.pids[0] == first
    connected.cells.run("import torch, torch.distributed as dist\nx = torch.ones(1).cuda()")
    connected.cells.run("dist.all_reduce(x)")
    assert connected.cells.ask("x.item()") == [connected.size] * connected.size
    assert connected.cells.ask("kept.tolist()", ranks=[0]) == [[0, 1, 2, 3]]


def test_a_part_of_a_gpu_is_a_ranks_own(
    cluster: Make, gpu: GPUMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (found := parts()):
        pytest.skip("no GPU of this machine is divided into parts (MIG)")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", found[0])
    cells = cluster(1, framework=sky.plugins.torch(single_rank=True))
    cells.run("import torch, torch.distributed as dist")
    assert cells.ask("dist.get_backend()") == ["nccl"]
    [total] = cells.ask("torch.cuda.get_device_properties(0).total_memory")
    assert total / 2**20 < 0.9 * gpu.gpus[0].memory
