"""What needs more than one GPU, or one that is divided (MIG)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jupyter_sky as sky
from tests.cluster.cells import Cells
from tests.gpu.checks.test_pinning import UUID
from tests.gpu.checks.test_stop import PREPARE, stopped
from tests.gpu.figures import Check
from tests.gpu.machine import GPUMachine, parts

Make = Callable[..., Cells]


@pytest.fixture
def several(gpu: GPUMachine) -> int:
    if len(gpu.gpus) < 2:
        pytest.skip("this machine has one GPU")
    return len(gpu.gpus)


def test_each_rank_has_its_own_of_several_gpus_and_nccl_connects_them(
    cluster: Make, gpu: GPUMachine, several: int
) -> None:
    cells = cluster(1)
    cells.run("import torch, torch.distributed as dist\nrank = dist.get_rank()")
    assert cells.ask("dist.get_backend()") == ["nccl"] * several
    assert cells.ask(UUID) == [each.uuid for each in gpu.gpus]
    cells.run("x = torch.full((2,), rank + 1.0, device='cuda')\ndist.all_reduce(x)")
    assert cells.ask("x[0].item()") == [several * (several + 1) / 2] * several


def test_stop_in_a_collective_that_waits_for_a_rank(
    cluster: Make, several: int, check: Check
) -> None:
    cells = cluster(1)
    cells.run(PREPARE)
    pids = [rank.pid for rank in cells.cluster.state.ranks]
    code = (
        "x = torch.ones(8, device='cuda')\n"
        "if rank:\n    time.sleep(600)\n"
        "dist.all_reduce(x); torch.cuda.synchronize()"
    )
    taken = stopped(cells, code)
    check.note(f"{taken:.2f} s")
    assert [rank.pid for rank in cells.cluster.state.ranks] == pids
    cells.run("x = torch.ones(1, device='cuda')\ndist.all_reduce(x)")
    assert cells.ask("(x.item(), kept.tolist())") == [(several, [0, 1, 2, 3])] * several
    assert taken < 3


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
