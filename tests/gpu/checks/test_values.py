"""Tensors and models that go to the GPU of a rank and come home."""

from __future__ import annotations

import time
from collections.abc import Callable

import jupyter_sky as sky
from tests.cluster.cells import Cells
from tests.gpu.figures import Check
from tests.installed import on_first_use

torch = on_first_use("torch")

Make = Callable[..., Cells]


def test_a_tensor_on_the_gpu_comes_home_to_the_processor(cluster: Make, check: Check) -> None:
    cells = cluster(1, framework=sky.plugins.torch(single_rank=True), procs_per_node=1)
    cells.namespace["sent"] = torch.arange(2**26, dtype=torch.float32)  # 256 MiB
    began = time.monotonic()
    cells.run("import torch\nback = sent.cuda() * 2", names=["sent"])
    pushed = time.monotonic()
    found = cells.run("pass", values={0: ["back"]})[0]["back"]
    ended = time.monotonic()
    check.note(f"256 MiB there and used {pushed - began:.2f} s, back {ended - pushed:.2f} s")
    assert found.device.type == "cpu"
    assert torch.equal(found, 2 * cells.namespace["sent"])


def test_a_model_is_trained_on_the_gpu_and_comes_home(cluster: Make) -> None:
    cells = cluster(1, framework=sky.plugins.torch(single_rank=True), procs_per_node=1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    cells.namespace["model"] = model
    before = model[0].weight.detach().clone()
    cells.run(
        "import torch\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "trained = DistributedDataParallel(model.cuda())\n"
        "optimizer = torch.optim.Adam(trained.parameters())\n"
        "for _ in range(5):\n"
        "    optimizer.zero_grad()\n"
        "    trained(torch.randn(32, 4, device='cuda')).square().mean().backward()\n"
        "    optimizer.step()\n"
        "trained = trained.module",
        names=["model"],
    )
    home = cells.run("pass", values={0: ["trained"]})[0]["trained"]
    assert {each.device.type for each in home.parameters()} == {"cpu"}
    assert not torch.equal(home[0].weight, before)
    assert torch.isfinite(home(torch.randn(2, 4))).all()
    assert torch.equal(model[0].weight, before)  # the notebook's own is as it was
