"""The process group: nccl where each rank has a GPU, gloo where ranks share one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jupyter_sky as sky
from jupyter_sky.errors import SkyError
from tests.cluster.cells import Cells
from tests.gpu.figures import Check
from tests.gpu.machine import GPUMachine

Make = Callable[..., Cells]

IMPORTS = "import os, torch, torch.distributed as dist\nrank = dist.get_rank()"
DEVICE = "str(torch.ones(1, device='cuda').device)"


def test_one_rank_forms_a_group_with_nccl(cells: Cells, check: Check) -> None:
    cells.run(IMPORTS)
    assert cells.ask("dist.get_backend()") == ["nccl"]
    cells.run("x = torch.full((4,), 3.0, device='cuda')\ndist.all_reduce(x)\ndist.broadcast(x, 0)")
    assert cells.ask("x.tolist()") == [[3.0] * 4]
    check.note(cells.ask("'nccl ' + '.'.join(map(str, torch.cuda.nccl.version()))")[0])


def test_the_device_of_local_rank_is_the_ranks_own(cells: Cells) -> None:
    cells.run(IMPORTS)
    cells.run("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))")
    assert cells.ask(DEVICE) == ["cuda:0"]
    assert cells.ask("torch.cuda.device_count()") == [1]


def test_ranks_that_share_a_gpu_take_gloo_with_cuda_tensors(cluster: Make, gpu: GPUMachine) -> None:
    ranks = 2 * len(gpu.gpus)
    cells = cluster(1, procs_per_node=ranks)
    cells.run(IMPORTS)
    assert cells.ask("dist.get_backend()") == ["gloo"] * ranks
    # As scripts for torchrun begin: the number of the GPU among those that a rank sees.
    cells.run("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))")
    assert cells.ask(DEVICE) == ["cuda:0"] * ranks
    cells.run("x = torch.full((4,), rank + 1.0, device='cuda')\ndist.all_reduce(x)")
    total = sum(range(1, ranks + 1))
    assert cells.ask("(x.tolist(), str(x.device))") == [([total] * 4, "cuda:0")] * ranks


def test_a_model_is_trained_by_ranks_that_share_a_gpu(cluster: Make, gpu: GPUMachine) -> None:
    ranks = 2 * len(gpu.gpus)
    cells = cluster(1, procs_per_node=ranks)
    cells.run(IMPORTS)
    cells.run(
        "from torch.nn.parallel import DistributedDataParallel\n"
        "torch.manual_seed(rank)\n"
        "model = DistributedDataParallel(torch.nn.Linear(8, 1).cuda())\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.randn(16, 8, device='cuda')).square().mean().backward()\n"
        "    optimizer.step()"
    )
    first, *others = cells.ask("model.module.weight.detach().cpu().tolist()")
    assert all(each == first for each in others)


def test_nccl_on_a_shared_gpu_is_refused_in_one_sentence(gpu: GPUMachine, check: Check) -> None:
    plugins = [sky.plugins.torch(backend="nccl")]
    ranks = 2 * len(gpu.gpus)
    said = rf'backend="nccl" needs a GPU for each rank, and {ranks} ranks share'
    with (
        pytest.raises(SkyError, match=said) as caught,
        sky.ComputePool(procs_per_node=ranks, plugins=plugins),
    ):
        pass
    check.note(f"{len(str(caught.value))} characters")
