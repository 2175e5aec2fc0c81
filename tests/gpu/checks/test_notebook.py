"""A notebook on a machine with a GPU, which it uses itself: a real kernel, and cells of `%%sky`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator

import pytest

from tests.gpu.figures import Check
from tests.gpu.machine import GPUMachine
from tests.notebook.kernels import LiveNotebook

PREPARE = """
import torch
model = torch.nn.Linear(8, 1).cuda()
same = model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(64, 8, device="cuda")
before = model.weight.detach().clone()
"""

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    loss = wrapped(x).square().mean()
    loss.backward()
    optimizer.step()
print(f"{dist.get_backend()}, {torch.cuda.get_device_name()}, loss {loss.item():.3g}")
device = str(x.device)
"""


@pytest.fixture(scope="module")
def kernel(listed: GPUMachine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNotebook]:
    folder = tmp_path_factory.mktemp("notebook")
    with tempfile.TemporaryDirectory(prefix="sky-", ignore_cleanup_errors=True) as home:
        made = LiveNotebook(folder / "train.ipynb", JUPYTER_SKY_HOME=home)
        made.succeed("%load_ext jupyter_sky")
        yield made
        made.close()


@pytest.fixture
def notebook(gpu: GPUMachine, kernel: LiveNotebook) -> Iterator[LiveNotebook]:
    kernel.succeed(PREPARE)
    yield kernel
    kernel.succeed("%sky down")


@pytest.mark.parametrize("options", ["--nodes 1 --gpu NAME", "--nodes 2"])
def test_a_model_on_the_notebooks_gpu_is_trained_and_stays_there(
    notebook: LiveNotebook, gpu: GPUMachine, check: Check, options: str
) -> None:
    name = re.search(r"[A-Z]+\d+\w*", gpu.gpus[0].name.replace("NVIDIA", ""))
    assert name is not None
    options = options.replace("NAME", name[0])
    cell = notebook.succeed(f"%%sky {options} --out model --gather device\n{TRAIN}")
    check.note(cell.stdout.strip())
    ranks = len(cell.snapshot["ranks"])
    wanted = "gloo" if ranks > len(gpu.gpus) else "nccl"
    assert cell.stdout.startswith(f"{wanted}, {gpu.gpus[0].name}, loss ")
    shown = (
        "(model is same, model.weight.device.type, torch.equal(model.weight, before), "
        "optimizer.param_groups[0]['params'][0] is model.weight, device)"
    )
    assert notebook.value(shown) == (True, "cuda", False, True, ["cuda:0"] * ranks)


STEPS = """
for step in range(3):
    for each in (adam, optimizer):
        each.zero_grad()
        model(x).square().mean().backward()
        each.step()
"""


def test_optimizers_of_the_notebooks_model_go_on_in_the_notebook(notebook: LiveNotebook) -> None:
    make = "import torch\nadam = torch.optim.Adam(model.parameters())"
    notebook.succeed(f"%%sky --nodes 1 --out model,optimizer,adam\n{make}\n{STEPS}")
    notebook.succeed(STEPS)
    shown = "{name for o in (adam, optimizer) for s in o.state.values() for name in s if "
    shown += "name != 'step' and s[name].device.type != 'cuda'}"
    assert notebook.value(shown) == set()


def test_panel_and_commands_name_the_gpu(notebook: LiveNotebook, gpu: GPUMachine) -> None:
    name = gpu.gpus[0].name.removeprefix("NVIDIA ")
    cell = notebook.succeed("%%sky --nodes 1\nimport torch\nx = torch.ones(2**28, device='cuda')")
    assert name in cell.strips[-1]["text/plain"]
    assert name in notebook.succeed("%sky status").stdout
    doctor = notebook.succeed("%sky doctor")
    assert name in doctor.stdout, doctor.stdout


def test_a_script_for_torchrun_runs_as_it_is(notebook: LiveNotebook) -> None:
    (notebook.path.parent / "add.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(1, device='cuda')\n"
        "dist.all_reduce(x)\n"
        "print(f'{x.item():.0f} of {dist.get_world_size()}')\n"
        "dist.destroy_process_group()\n"
    )
    notebook.succeed("%sky up --nodes 1")
    assert "1 of 1" in notebook.succeed("%sky torchrun add.py").stdout


def test_a_profile_shows_kernels_under_the_cell(notebook: LiveNotebook) -> None:
    cell = notebook.succeed(f"%%sky --nodes 1 --profile\n{TRAIN}")
    assert "at::native" in "\n".join(cell.shown), cell.shown


KERNEL = """
import triton, triton.language as tl
@triton.jit
def half(x): return x / 2
@triton.jit
def halve(source, target, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    tl.store(target + place, half(tl.load(source + place, mask=inside)), mask=inside)
"""


def test_a_kernel_of_triton_that_the_notebook_has_defined(notebook: LiveNotebook) -> None:
    pytest.importorskip("triton")
    notebook.succeed(KERNEL)
    halve = "y = torch.empty_like(x)\nhalve[(1,)](x, y, x.numel(), BLOCK=512)"
    notebook.succeed(f"%%sky --nodes 1 --gather right\n{halve}\nright = torch.equal(y, x / 2)")
    assert notebook.value("right") == [True]
    notebook.succeed(halve)
    assert notebook.value("torch.equal(y, x / 2)")


RESET = """
model.load_state_dict(initial)
optimizer.load_state_dict(fresh)
"""


def test_a_training_on_the_gpu_is_reset(notebook: LiveNotebook) -> None:
    notebook.succeed(
        "import copy\ninitial, fresh = map(copy.deepcopy, (model, optimizer))\n"
        "initial, fresh = initial.state_dict(), fresh.state_dict()"
    )
    step = "optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()"
    seen = "[model.weight.tolist(), len(optimizer.state)]"
    notebook.succeed(f"%%sky --nodes 1 --gather first,last\nfirst = {seen}\n{step}\nlast = {seen}")
    first, last = notebook.value("first"), notebook.value("last")
    assert first[0][0] != last[0][0]
    notebook.succeed(RESET)
    notebook.succeed(f"%%sky --gather again,last\nagain = {seen}\n{step}\nlast = {seen}")
    assert notebook.value("again") == first
    assert notebook.value("last") == last
