"""Frameworks on a GPU, in cells as their users write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import jupyter_sky as sky
from tests.cluster.cells import Cells
from tests.gpu.checks.test_stop import stopped
from tests.gpu.figures import Check
from tests.gpu.machine import GPUMachine
from tests.installed import skip_without

Make = Callable[..., Cells]


@pytest.fixture
def cells(cells: Cells) -> Cells:
    cells.run("import torch, torch.distributed as dist")
    return cells


def test_a_model_on_the_processor_is_trained_beside_nccl(cells: Cells) -> None:
    # As the README's first example.
    cells.run(
        "from torch.nn.parallel import DistributedDataParallel\n"
        "model = DistributedDataParallel(torch.nn.Linear(8, 1))\n"
        "model(torch.ones(4, 8)).sum().backward()"
    )
    assert cells.ask("(dist.get_backend(), model.module.weight.grad.tolist())") == [
        ("nccl", [[4.0] * 8])
    ]


def test_batches_come_from_workers_through_pinned_memory(cells: Cells) -> None:
    cells.run(
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "torch.ones(1, device='cuda')  # CUDA is in use when workers are forked\n"
        "data = TensorDataset(torch.arange(256.0))\n"
        "loader = DataLoader(data, 32, num_workers=2, pin_memory=True)\n"
        "total = sum(batch.to('cuda', non_blocking=True).sum() for [batch] in loader).item()"
    )
    assert cells.ask("total") == [255 * 128]


def test_a_compiled_function_runs_on_the_gpu(cells: Cells) -> None:
    cells.run(
        "@torch.compile\ndef waves(x):\n    return x.sin() + x.cos()\n"
        "x = torch.linspace(0, 1, 1000, device='cuda')\n"
        "difference = (waves(x) - x.sin() - x.cos()).abs().max().item()"
    )
    assert cells.ask("difference < 1e-5") == [True]


def test_lightning(cells: Cells) -> None:
    skip_without("lightning")
    cells.run(
        "import lightning\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "class Model(lightning.LightningModule):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(4, 1)\n"
        "        self.devices = set()\n"
        "    def training_step(self, batch, number):\n"
        "        self.devices.add(str(batch[0].device))\n"
        "        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])\n"
        "    def configure_optimizers(self):\n"
        "        return torch.optim.SGD(self.parameters(), 0.1)\n"
        "x = torch.randn(64, 4)\n"
        "trainer = lightning.Trainer(\n"
        "    strategy='ddp', devices=1, num_nodes=dist.get_world_size(), max_epochs=2,\n"
        "    logger=False, enable_checkpointing=False, enable_progress_bar=False)\n"
        "data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8)\n"
        "trainer.fit(model := Model(), data)"
    )
    assert cells.ask("(trainer.world_size, model.devices)") == [(1, {"cuda:0"})]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_of_hugging_face(
    cluster: Make, gpu: GPUMachine, tmp_path: Path, ranks: int
) -> None:
    skip_without("transformers")
    skip_without("accelerate")
    cells = cluster(1, framework=sky.plugins.torch(single_rank=True), procs_per_node=ranks)
    cells.run(
        "import torch\n"
        "from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments\n"
        "torch.manual_seed(0)\n"
        "config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32,\n"
        "    bos_token_id=0, eos_token_id=0)\n"
        "text = {'input_ids': torch.arange(8), 'labels': torch.arange(8)}\n"
        "arguments = TrainingArguments(\n"
        f"    {str(tmp_path)!r}, max_steps=8, learning_rate=0.05, report_to=[],\n"
        "    disable_tqdm=True)\n"
        "trainer = Trainer(GPT2LMHeadModel(config), arguments,\n"
        "    train_dataset=[text] * 64, eval_dataset=[text] * 10)\n"
        "first = trainer.evaluate()['eval_loss']\n"
        "trainer.train()\n"
        "last = trainer.evaluate()['eval_loss']"
    )
    device = "str(next(trainer.model.parameters()).device)"
    found = cells.ask(f"(trainer.args.world_size, {device}, last < first / 2)")
    assert found == [(ranks, "cuda:0", True)] * ranks


def test_jax(cluster: Make, check: Check) -> None:
    skip_without("jax")
    cells = cluster(1, framework=sky.plugins.jax(), procs_per_node=1)
    cells.run(
        "import jax, jax.numpy as jnp\n"
        "x = jnp.arange(1000.0)\n"
        "total = float(jax.jit(lambda x: (x * x).sum())(x))"
    )
    found = cells.ask("(jax.devices()[0].platform, jax.device_count(), total)")
    assert found == [("gpu", 1, pytest.approx(332833500))]
    taken = stopped(cells, "while True:\n    x = (x * 1.0001).block_until_ready()")
    check.note(f"Stop in {taken:.2f} s")
    assert cells.ask("total > 0") == [True]


def test_two_ranks_of_jax_share_a_gpu(cluster: Make) -> None:
    skip_without("jax")
    cells = cluster(1, framework=sky.plugins.jax(), procs_per_node=2)
    cells.run(
        "import jax\nfrom jax.sharding import NamedSharding, PartitionSpec\nimport numpy as np\n"
        "mesh = jax.make_mesh((jax.device_count(),), ('ranks',))\n"
        "own = np.full(1, jax.process_index() + 1.0)\n"
        "spread = NamedSharding(mesh, PartitionSpec('ranks'))\n"
        "everyone = jax.make_array_from_process_local_data(spread, own)\n"
        "summed = float(jax.jit(lambda x: x.sum())(everyone))"
    )
    assert cells.ask("summed") == [3.0, 3.0]
