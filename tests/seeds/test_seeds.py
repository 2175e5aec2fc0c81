"""Every example of the seed documents runs, for real, on this machine."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.notebook.options.lines import parse_cell
from tests.notebook.kernels import LiveNotebook
from tests.seeds.documents import SEEDS, Document, indented, local

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


def test_other_pools_for_the_same_training(tmp_path: Path) -> None:
    blocks = PYTORCH.blocks("python")
    show = "print([r['rank'] for r in results])"
    out = run(tmp_path, train_of_the_first_block(), blocks[1], show, blocks[3], show)
    lists = [line for line in out.splitlines() if line.startswith("[")]
    assert lists == [str(list(range(ranks))) for ranks in (2, 4)]


def test_pinned_versions(tmp_path: Path) -> None:
    after = """
from jupyter_sky.providers.spec import Image
from jupyter_sky.api.assemble import PlannedCluster
from jupyter_sky.providers.spec import ClusterSpec
image = plugins[0].transform(Image(), PlannedCluster(ClusterSpec("x", accelerator="A100")))
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


def pieces_of_the_guide() -> list[str]:
    """The body of its training function, with the loop that is between its pieces."""
    model = GUIDE.find("model = nn.Sequential(", "model = DDP(model)")
    data = GUIDE.find("x = torch.randn(10000, 100)", "batch_size=batch_size, sampler=sampler)")
    stats = GUIDE.find("stats = torch.tensor(", "stats[2].item()")
    return [
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
        indented(
            "return {'loss': avg_loss, 'seen': stats[2].item(), 'type': type(model).__name__}"
        ),
    ]


TRAINED = (
    "results = train(epochs=1, batch_size=100, lr=0.1) @ compute\n"
    "print(results[0] == results[1], results[0]['seen'], results[0]['type'])"
)


def test_the_guide_piece_by_piece(tmp_path: Path) -> None:
    pool = GUIDE.find("with sky.Compute(", "as compute:")
    head = GUIDE.find(
        "@sky.function\ndef", '"""Train a neural network with DistributedDataParallel."""'
    )
    out = run(tmp_path, SKY, head, *pieces_of_the_guide(), pool, indented(TRAINED))
    assert out.splitlines()[-1] == "True 10000.0 DistributedDataParallel"


def test_the_guide_with_the_integration_in_place_of_the_plugin(tmp_path: Path) -> None:
    # The other guide names only the lines of a file. They are these, below two decorators.
    head = "@sky.compute\n@sky.integrations.torch\ndef train(epochs, batch_size, lr):"
    pool = "with sky.ComputePool(provider=sky.Local(), nodes=2) as compute:"
    out = run(tmp_path, SKY, head, *pieces_of_the_guide(), pool, indented(TRAINED))
    assert out.splitlines()[-1] == "True 10000.0 DistributedDataParallel"


def test_how_it_works(tmp_path: Path) -> None:
    out = run(tmp_path, SKY, CONCEPTS.blocks("python")[0], "print(results)")
    assert out.splitlines()[-1] == "[None, None, None, None]"


def test_jax_and_keras_plugins(tmp_path: Path) -> None:
    # The tests do not install JAX. A single rank does without: it has nothing to connect to.
    nodes = 2 if importlib.util.find_spec("jax") else 1
    after = f"""
@sky.compute
def backend():
    import os
    return os.environ["KERAS_BACKEND"]

with sky.ComputePool(provider=sky.Local(), nodes={nodes}, plugins=plugins) as pool:
    print(backend() @ pool)
"""
    out = run(tmp_path, SKY, CONCEPTS.blocks("python")[1], after)
    assert out.splitlines()[-1] == str(["jax"] * nodes)


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
    out = run(tmp_path, SKY, CONCEPTS.blocks("python")[5], on_a_pool("train()", 2))
    assert out.splitlines() == ["[None, None]"]


def test_output_control_in_its_other_forms(tmp_path: Path) -> None:
    functions = """
@sky.compute
@sky.stdout(only=lambda info: info.node < 2)
def train():
    print("shown")
    return unheard.local()

@sky.silent
def quiet():
    print("never shown")
    return "done"

unheard = sky.compute(quiet)
"""
    out = run(tmp_path, SKY, functions, on_a_pool("train()", 4))
    assert out.splitlines() == ["shown", "shown", str(["done"] * 4)]


MAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(10 ** dist.get_rank())
dist.all_reduce(total)
print(f"rank {dist.get_rank()}: {total}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("index", "port"), [(0, 8008), (1, 29500)], ids=["plain", "rendezvous"])
def test_the_real_torchrun_in_a_cell(torchrun: LiveNotebook, index: int, port: int) -> None:
    script = TORCHRUN.blocks("yaml")[index].removeprefix("run: |\n")
    script = textwrap.dedent(script).replace(str(port), str(free_port(port)))
    cell = torchrun.succeed(f"%%sky --nodes 2 --stdout all\n%%bash\n{script}")
    # The group of each node's script spans both nodes: its sum has a digit of either rank.
    found = sorted(re.findall(r"^([01]) │ rank ([01]): 11$", cell.stdout, flags=re.MULTILINE))
    assert [node for node, _ in found] == ["0", "1"], cell.stdout
    assert sorted(rank for _, rank in found) == ["0", "1"]
    # The rendezvous gives ranks to those who come; without it the node's own rank counts.
    assert index == 1 or found == [("0", "0"), ("1", "1")]
    # And the group of the cluster is as it was.
    torchrun.succeed(
        "%%sky --out total\nimport torch, torch.distributed as dist\n"
        "total = torch.ones(1)\ndist.all_reduce(total)"
    )
    assert torchrun.value("total.item()") == 2.0


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNotebook]:
    """A notebook beside the script of the example."""
    place = tmp_path_factory.mktemp("torchrun")
    folder = place / "examples" / "mingpt"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(MAIN)
    # Where an environment is active its programs are found, on the nodes as in the kernel.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    notebook = LiveNotebook(place / "torchrun.ipynb", PATH=path)
    try:
        notebook.succeed("%load_ext jupyter_sky")
        yield notebook
    finally:
        notebook.close()


def free_port(wanted: int) -> int:
    """Return the port that the example has, or another one where somebody has that."""
    for port in (wanted, 0):
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("", port))
            return int(sock.getsockname()[1])
    raise OSError("this machine has no free port")


def test_the_options_of_the_larger_launch() -> None:
    line = next(line for line in TORCHRUN.text.splitlines() if "--num-nodes 4" in line)
    options = parse_cell(line[line.index("--num-nodes") :])
    assert (options.nodes, options.gpu, options.cpus) == (4, "L4:4", "8+")


def test_no_block_was_left_out() -> None:
    # What is above runs every one of them by its number.
    assert len(PYTORCH.blocks("python")) == 5
    assert len(CONCEPTS.blocks("python")) == 6
    assert len(TORCHRUN.blocks("yaml")) == 2


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the documents are not beside the repository")
@pytest.mark.parametrize("document", [PYTORCH, CONCEPTS], ids=["torch plugin", "concepts"])
def test_patterns_call_what_the_documents_call(document: Document) -> None:
    blocks = document.blocks("python"), document.pattern.blocks("python")
    assert [calls(block) for block in blocks[0]] == [calls(block) for block in blocks[1]]


def calls(code: str) -> set[str]:
    """Return what code uses of ours: names, and the keywords that are given to them."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and (name := ast.unparse(node)).startswith("sky."):
            found.add(name)
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)).startswith("sky."):
            found.update(f"{name}({keyword.arg}=)" for keyword in node.keywords)
    return found
