"""Every example of the seed documents runs, for real, on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_sky.notebook.options import parse_cell
from tests.seeds.documents import Document, indented, local

PYTORCH = Document("000")
GUIDE = Document("002")
CONCEPTS = Document("003")
TORCHRUN = Document("004")

SKY = "import jupyter_sky as sky\n"


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None


def run(folder: Path, *parts: str) -> str:
    """Run parts of code as one program and return what it prints."""
    program = folder / "program.py"
    program.write_text(local("\n".join(parts), has_gpu()))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train_of_the_first_block() -> str:
    first = PYTORCH.blocks("python")[0]
    return first[: first.index("with sky.ComputePool")]


def test_basic_ddp_training(tmp_path: Path) -> None:
    lines = run(tmp_path, PYTORCH.blocks("python")[0]).splitlines()
    # One set of epoch lines: the other ranks are silent.
    assert [line.split(":")[0] for line in lines[:10]] == [f"Epoch {n}" for n in range(10)]
    assert [line.split(":")[0] for line in lines[10:]] == [f"Rank {n}" for n in range(4)]


@pytest.mark.parametrize(("index", "ranks"), [(1, 2), (3, 4)])
def test_other_pools_for_the_same_training(tmp_path: Path, index: int, ranks: int) -> None:
    block = PYTORCH.blocks("python")[index]
    out = run(tmp_path, train_of_the_first_block(), block, "print([r['rank'] for r in results])")
    assert out.splitlines()[-1] == str(list(range(ranks)))


def test_pinned_versions(tmp_path: Path) -> None:
    after = """
from jupyter_sky.providers.spec import Image
from jupyter_sky.api.assemble import Blueprint
from jupyter_sky.providers.spec import ClusterSpec
image = plugins[0].transform(Image(), Blueprint(ClusterSpec("x", accelerator="A100")))
print(list(image.pip), [index.url for index in image.pip_indexes])
"""
    out = run(tmp_path, SKY, PYTORCH.blocks("python")[2], after)
    assert "torch==2.3.0" in out
    assert "torchvision==0.18.0" in out
    assert "/whl/cu124" in out


def test_together_with_huggingface(tmp_path: Path) -> None:
    before = """
@sky.compute
def finetune():
    import os
    import torch.distributed as dist
    return dist.get_world_size(), os.environ["HF_TOKEN"]
"""
    out = run(tmp_path, SKY, before, PYTORCH.blocks("python")[4], "print(results)")
    assert out.splitlines()[-1] == "[(2, 'hf_xxx'), (2, 'hf_xxx')]"


def test_the_guide_piece_by_piece(tmp_path: Path) -> None:
    pool = GUIDE.find("with sky.Compute(", "as compute:")
    head = GUIDE.find(
        "@sky.function\ndef", '"""Train a neural network with DistributedDataParallel."""'
    )
    model = GUIDE.find("model = nn.Sequential(", "model = DDP(model)")
    data = GUIDE.find("x = torch.randn(10000, 100)", "batch_size=batch_size, sampler=sampler)")
    stats = GUIDE.find("stats = torch.tensor(", "stats[2].item()")
    program = [
        SKY,
        head,
        indented(
            "import torch\nimport torch.distributed as dist\nfrom torch import nn\n"
            "from torch.nn.parallel import DistributedDataParallel as DDP\n"
            "from torch.utils.data import DataLoader, DistributedSampler, TensorDataset\n"
            "info, device = sky.instance_info(), 'cpu'"
        ),
        indented(model),
        indented(data),
        indented(
            "optimizer = torch.optim.SGD(model.parameters(), lr=lr)\n"
            "for epoch in range(epochs):\n"
            "    sampler.set_epoch(epoch)\n"
            "    epoch_loss, correct, total = 0.0, 0, 0\n"
            "    for batch, labels in loader:\n"
            "        out = model(batch)\n"
            "        loss = nn.functional.cross_entropy(out, labels)\n"
            "        optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
            "        epoch_loss += loss.item()\n"
            "        correct += (out.argmax(1) == labels).sum().item()\n"
            "        total += len(labels)"
        ),
        indented(stats),
        indented("return {'loss': avg_loss, 'seen': stats[2].item()}"),
        pool,
        indented("results = train(epochs=1, batch_size=100, lr=0.1) @ compute"),
        "print(results[0] == results[1], results[0]['seen'])",
    ]
    assert run(tmp_path, *program).splitlines()[-1] == "True 10000.0"


def test_how_it_works(tmp_path: Path) -> None:
    out = run(tmp_path, SKY, CONCEPTS.blocks("python")[0], "print(results)")
    assert out.splitlines()[-1] == "[None, None, None, None]"


def test_jax_and_keras_plugins(tmp_path: Path) -> None:
    out = run(tmp_path, SKY, CONCEPTS.blocks("python")[1], "print([p.name for p in plugins])")
    assert out.splitlines()[-1] == "['jax', 'keras']"


def on_a_pool(call: str, nodes: int) -> str:
    return f"""
with sky.ComputePool(provider=sky.Local(), nodes={nodes}) as pool:
    results = {call} @ pool
print(results)
"""


def test_shards_stay_aligned(tmp_path: Path) -> None:
    before = "def fit(x, y):\n    return list(zip(x, y))"
    call = "train(list(range(10)), [n * n for n in range(10)])"
    after = (
        on_a_pool(call, 3) + "print(sorted(sum(results, [])) == [(n, n * n) for n in range(10)])"
    )
    out = run(tmp_path, SKY, before, CONCEPTS.blocks("python")[2], after)
    assert out.splitlines()[-1] == "True"


def test_runtime_context(tmp_path: Path) -> None:
    before = "def coordinate_others(): print('coordinating')\ndef process(data): return data * 2"
    out = run(
        tmp_path, SKY, before, CONCEPTS.blocks("python")[3], on_a_pool("distributed_task(4)", 2)
    )
    assert out.splitlines()[-1] == "[8, 8]"
    assert sorted(out.splitlines()[:-1]) == ["Node 0 of 2", "Node 1 of 2", "coordinating"]


def test_output_control(tmp_path: Path) -> None:
    before = "epoch, loss = 7, 0.25"
    out = run(tmp_path, SKY, before, CONCEPTS.blocks("python")[4], on_a_pool("train()", 4))
    assert out.splitlines() == ["Epoch 7: loss=0.2500", "[None, None, None, None]"]


MAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print("sum", int(x.item()), "of", os.environ["WORLD_SIZE"])
dist.destroy_process_group()
"""


@pytest.mark.parametrize("index", [0, 1])
def test_the_real_torchrun(tmp_path: Path, index: int) -> None:
    folder = tmp_path / "examples" / "mingpt"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(MAIN)
    script = TORCHRUN.blocks("yaml")[index].removeprefix("run: |\n")
    launch = f"""
@sky.compute
def launch():
    import subprocess
    return subprocess.run(["bash", "-ec", {script!r}], cwd={str(tmp_path)!r}, check=True,
                          capture_output=True, text=True).stdout
"""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    before = f"import os\nos.environ['PATH'] = {path!r}\nos.environ['GLOO_SOCKET_IFNAME'] = 'lo'"
    out = run(tmp_path, SKY, before, launch, on_a_pool("launch()", 2))
    assert out.count("sum 2 of 2") == 2


def test_the_options_of_the_larger_launch() -> None:
    line = next(line for line in TORCHRUN.text.splitlines() if "--num-nodes 4" in line)
    options = parse_cell(line[line.index("--num-nodes") :])
    assert (options.nodes, options.gpu, options.cpus) == (4, "L4:4", "8+")
