"""Tensors and models that go to the GPU of a rank and come home."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.cells import Cells
from tests.gpu.figures import Check
from tests.installed import on_first_use

torch = on_first_use("torch")


def test_a_tensor_on_the_gpu_comes_home_to_the_processor(cells: Cells, check: Check) -> None:
    cells.namespace["sent"] = torch.arange(2**26, dtype=torch.float32)  # 256 MiB
    began = time.monotonic()
    cells.run("import torch\nback = sent.cuda() * 2", names=["sent"])
    pushed = time.monotonic()
    found = cells.run("pass", values={0: ["back"]})[0]["back"]
    ended = time.monotonic()
    check.note(f"256 MiB there and used {pushed - began:.2f} s, back {ended - pushed:.2f} s")
    assert found.device.type == "cpu"
    assert torch.equal(found, 2 * cells.namespace["sent"])


def test_a_model_is_trained_on_the_gpu_and_comes_home(cells: Cells) -> None:
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


def test_a_checkpoint_is_saved_from_the_gpu_and_restored_there(
    cells: Cells, tmp_path: Path
) -> None:
    cells.run(
        "import torch, jupyter_sky as sky\n"
        "model = torch.nn.Linear(8, 4).cuda()\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "model(torch.ones(2, 8, device='cuda')).sum().backward()\noptimizer.step()\n"
        "before = model.weight.detach().clone()\n"
        f"sky.save({str(tmp_path / 'saved')!r}, model=model, optimizer=optimizer)\n"
        "with torch.no_grad():\n    model.weight.zero_()\n"
        f"sky.load({str(tmp_path / 'saved')!r}, model=model, optimizer=optimizer)"
    )
    assert cells.ask("(model.weight.device.type, torch.equal(model.weight, before))") == [
        ("cuda", True)
    ]


def test_the_digest_of_a_tensor_on_the_gpu_tells_values_apart(cells: Cells) -> None:
    cells.run(
        "import torch\nfrom jupyter_sky.node.rank.comparison.digests import of_tensor\n"
        "x = torch.randn(100_000, device='cuda')\ny = x.clone()\nsame = of_tensor(y)\n"
        "y[-1] += 1"
    )
    assert cells.ask("(of_tensor(x) == same, of_tensor(y) == same)") == [(True, False)]


def test_what_the_notebook_makes_on_its_gpu_by_default_is_sent(cells: Cells) -> None:
    torch.set_default_device("cuda")
    try:
        cells.namespace["x"] = torch.arange(1000)
        cells.run("import torch\ny = x + torch.ones(1000)", names=["x"])
        assert cells.ask("(str(x.device), y.sum().item())") == [("cuda:0", 500500.0)]
    finally:
        torch.set_default_device(None)
