"""Frameworks on two ranks of a pool, as their users write them."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import unittest.mock
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.errors import UsageError

TOKEN = "hf_a-token-that-nobody-sees"


USED = ("torch", "torch._dynamo", "transformers.trainer", "lightning")
"""What both ranks of `torch_pool` import, which takes five seconds: once for both."""


@pytest.fixture(scope="module")
def torch_pool() -> Iterator[sky.ComputePool]:
    plugins = [
        dataclasses.replace(sky.plugins.torch(), preload=USED),
        sky.plugins.accelerate({"mixed_precision": "bf16"}),
        sky.plugins.huggingface(token=TOKEN),
        sky.plugins.keras(backend="torch"),
    ]
    with sky.ComputePool(nodes=2, plugins=plugins) as pool:
        yield pool


@pytest.fixture(scope="module")
def jax_pool() -> Iterator[sky.ComputePool]:
    plugins = [sky.plugins.jax(), sky.plugins.keras(backend="jax")]
    with sky.ComputePool(nodes=2, plugins=plugins) as pool:
        yield pool


# -- torch -----------------------------------------------------------------------------------------


@sky.compute
def prepare_with_accelerate() -> dict[str, Any]:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    loss = model(torch.full((1, 2), accelerator.process_index + 1.0)).float().sum()
    accelerator.backward(loss)
    optimizer.step()
    return {
        "precision": accelerator.mixed_precision,
        "ranks": accelerator.gather(torch.tensor([accelerator.process_index])).tolist(),
        "gradient": model.module.weight.grad.flatten().tolist(),
    }


def test_accelerate_finds_the_group_and_its_precision(torch_pool: sky.ComputePool) -> None:
    for seen in prepare_with_accelerate() @ torch_pool:
        assert seen == {"precision": "bf16", "ranks": [0, 1], "gradient": [1.5, 1.5]}


@sky.compute
def train_in_mixed_precision() -> tuple[Any, Any, Any, str]:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = torch.nn.Linear(2, 1)
    prepared, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    accelerator.backward(prepared(torch.ones(1, 2)).sum())
    optimizer.step()
    return prepared, accelerator.unwrap_model(prepared), optimizer, accelerator.mixed_precision


def test_a_model_that_was_trained_in_mixed_precision_comes_back(
    torch_pool: sky.ComputePool,
) -> None:
    import torch

    prepared, inner, optimizer, precision = (train_in_mixed_precision() @ torch_pool)[0]
    assert precision == "bf16"
    assert type(prepared) is torch.nn.Linear
    assert inner is prepared
    third = torch.full((1, 2), 1 / 3)
    assert torch.equal(inner(third), third @ inner.weight.T + inner.bias)  # as bf16 is not
    assert optimizer.state[inner.weight]["step"] == 1


@sky.compute
def start_processes() -> tuple[str, str, Any]:
    import accelerate
    from accelerate.launchers import debug_launcher

    def train(*given: int) -> None:
        alone.extend(given)

    alone: list[int] = []
    said = []
    for launch in (accelerate.notebook_launcher, debug_launcher):
        with pytest.raises(UsageError) as caught:
            launch(train, (1,), num_processes=2)
        said.append(str(caught.value))
    accelerate.notebook_launcher(train, (1,), num_processes=1)
    return said[0], said[1], alone


def test_accelerate_starts_no_processes_beside_the_ranks(torch_pool: sky.ComputePool) -> None:
    said = "starts processes, and the ranks of this cell are processes: call `train(…)` itself"
    for notebooks, debuggers, alone in start_processes() @ torch_pool:
        assert notebooks.startswith(f"`notebook_launcher` {said}, which each of the 2 ranks does")
        assert debuggers.startswith(f"`debug_launcher` {said}")
        assert alone == [1]


@sky.compute
def prepare_with(accelerator: Any) -> tuple[int, str, str]:
    import torch

    # As `Trainer` does with each checkpoint, whose arguments have a state in them.
    assert type(pickle.loads(pickle.dumps(accelerator.state))).__name__ == "AcceleratorState"
    model = accelerator.prepare(torch.nn.Linear(2, 1))
    return accelerator.process_index, type(model).__name__, accelerator.mixed_precision


def test_an_accelerator_that_was_made_here_finds_the_group(torch_pool: sky.ComputePool) -> None:
    # So does a `Trainer` of Hugging Face, which has one.
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    try:
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        seen = prepare_with(accelerator) @ torch_pool
        assert accelerator.num_processes == 1
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert seen == [(rank, "DistributedDataParallel", "bf16") for rank in range(2)]


@sky.compute
def step_of_a_kept_accelerator(breaks: bool) -> list[float]:
    import builtins

    import torch
    import torch.distributed as dist
    from accelerate import Accelerator

    kept: Any = builtins
    if breaks:
        accelerator = Accelerator()
        kept.prepared = accelerator, accelerator.prepare(torch.nn.Linear(2, 1))
        if accelerator.process_index == 1:
            raise ValueError("no data")
        dist.barrier()
    accelerator, model = kept.prepared
    accelerator.backward(model(torch.ones(1, 2)).float().sum() * accelerator.process_index)
    gradient: list[float] = accelerator.gather(model.module.weight.grad).flatten().tolist()
    return gradient


def test_an_accelerator_goes_on_where_the_group_was_formed_again(
    torch_pool: sky.ComputePool,
) -> None:
    with pytest.raises(ValueError, match="no data"):
        step_of_a_kept_accelerator(breaks=True) @ torch_pool
    assert step_of_a_kept_accelerator(breaks=False) @ torch_pool == [[0.5] * 4] * 2


def test_accelerate_counts_the_ranks_again_where_there_are_more() -> None:
    from accelerate import PartialState

    from jupyter_sky.plugins.torch_group import former

    try:
        PartialState(cpu=True)
        left, new = (SimpleNamespace(rank=lambda: 0, size=size.__int__) for size in (2, 3))
        former.replace([(left, new)])
        assert not PartialState._shared_state
    finally:
        PartialState._reset_state()


@sky.compute
def train_with_hugging_face(folder: str) -> dict[str, Any]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=32, bos_token_id=0, eos_token_id=0
    )
    text = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
    trainer = Trainer(
        GPT2LMHeadModel(config),
        TrainingArguments(
            folder, max_steps=8, learning_rate=0.05, use_cpu=True, report_to=[], disable_tqdm=True
        ),
        train_dataset=[text] * 64,
        eval_dataset=[text] * 10,
    )
    first = trainer.evaluate()["eval_loss"]
    trainer.train()
    return {
        "world": trainer.args.world_size,
        "first": first,
        "last": trainer.evaluate()["eval_loss"],
        "evaluated": len(trainer.predict([text] * 10).predictions),
        "weights": trainer.model.lm_head.weight.detach().sum().item(),
        "token": os.environ["HF_TOKEN"],
    }


def test_a_trainer_of_hugging_face_uses_all_ranks(
    torch_pool: sky.ComputePool, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = train_with_hugging_face(str(tmp_path)) @ torch_pool
    assert one["world"] == 2
    assert one["evaluated"] == 10
    assert one["last"] < one["first"] / 2
    assert {**one, "token": ""} == {**other, "token": ""}
    assert one["token"] == TOKEN
    assert TOKEN not in repr(torch_pool.plugins) + "".join(capfd.readouterr())


@sky.compute
def train_with_lightning(**settings: Any) -> dict[str, Any]:
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.batches = 0

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            self.batches += 1
            return torch.nn.functional.mse_loss(self.layer(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    lightning.seed_everything(0)
    x = torch.randn(64, 4)
    trainer = lightning.Trainer(
        **settings,
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with warnings.catch_warnings(record=True) as warned:
        trainer.fit(model := Model(), DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8))
    weights = model.layer.weight.flatten().tolist()
    alone = [str(each.message) for each in warned if "alone" in str(each.message)]
    return {
        "world": trainer.world_size,
        "batches": model.batches,
        "weights": weights,
        "alone": alone,
    }


def test_lightning_trains_in_the_group_that_is_there(torch_pool: sky.ComputePool) -> None:
    one, other = train_with_lightning(strategy="ddp", num_nodes=2) @ torch_pool
    assert one == other
    assert (one["world"], one["batches"]) == (2, 8)  # 64 rows, 2 ranks, batches of 8, 2 epochs
    assert one["alone"] == []


def test_a_trainer_that_trains_on_each_rank_alone_says_so_once(torch_pool: sky.ComputePool) -> None:
    one, other = train_with_lightning() @ torch_pool
    assert (one["world"], one["batches"], other["batches"]) == (1, 16, 16)
    assert one["alone"] == [
        "this Trainer trains on each rank alone: for all together, "
        'type `strategy="ddp", num_nodes=2, devices=1`'
    ]
    assert other["alone"] == []
    assert (train_with_lightning() >> torch_pool)["alone"] == []  # on one rank, as is meant


@sky.compute
def places_in_lightning() -> tuple[int, list[str]]:
    import lightning

    settings: dict[str, Any] = {"accelerator": "cpu", "devices": 1}
    # As on one node with two GPUs, in a step of Slurm's that has both ranks.
    place = {"NODE_RANK": "0", "LOCAL_RANK": "0"}
    step = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "job"}
    with unittest.mock.patch.dict(os.environ, place | step):
        trainer = lightning.Trainer(strategy="ddp", num_nodes=2, logger=False, **settings)
    said = []
    for use in (
        lambda: lightning.Trainer(strategy="ddp", logger=False, **settings),
        lambda: lightning.Fabric(strategy="ddp_notebook", num_nodes=2, **settings).launch(print),
    ):
        try:
            use()
        except UsageError as error:
            said.append(str(error))
    return trainer.global_rank, said


def test_lightning_knows_the_ranks_of_one_node_apart_and_starts_none(
    torch_pool: sky.ComputePool,
) -> None:
    found = places_in_lightning() @ torch_pool
    assert [rank for rank, _ in found] == [0, 1]
    for _, (number, processes) in found:
        assert number.startswith("Lightning counts 1 processes, and there are 2 ranks: type `str")
        assert processes.startswith("the strategies `ddp_notebook`, `ddp_fork` and `ddp_spawn` st")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"precision": "bf16"}, "config has 'precision', which is none of mixed_precision, "),
        ({"fsdp": {"strategy": 1}}, r"config\[\"fsdp\"\] has 'strategy', which is none of version"),
        ({"fsdp": "FULL_SHARD"}, r"config\[\"fsdp\"\]='FULL_SHARD' is no dict"),
        ({"fsdp": {"version": 2}, "deepspeed": {"zero_stage": 2}}, "both fsdp and deepspeed"),
    ],
)
def test_a_wrong_configuration_is_refused_before_anything_starts(config: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sky.plugins.accelerate(config)


def test_fsdp_and_deepspeed_are_configured_as_accelerate_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = sky.plugins.accelerate(
        {
            "fsdp": {
                "sharding_strategy": "SHARD_GRAD_OP",
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "transformer_layer_cls_to_wrap": "GPT2Block",
                "state_dict_type": "SHARDED_STATE_DICT",
                "use_orig_params": True,
                "activation_checkpointing": True,
            }
        }
    )
    for name, value in plugin.around_app.keywords["variables"].items():  # type: ignore[union-attr]
        monkeypatch.setenv(name, value)
    assert os.environ["ACCELERATE_USE_FSDP"] == "true"
    read = FullyShardedDataParallelPlugin()
    assert read.sharding_strategy.name == "SHARD_GRAD_OP"
    assert read.transformer_cls_names_to_wrap == ["GPT2Block"]
    assert read.state_dict_type.name == "SHARDED_STATE_DICT"
    assert read.use_orig_params and read.activation_checkpointing

    plugin = sky.plugins.accelerate(
        {"deepspeed": {"zero_stage": 3, "gradient_clipping": 1.0, "zero3_save_16bit_model": True}}
    )
    assert plugin.around_app.keywords["variables"] == {  # type: ignore[union-attr]
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_GRADIENT_CLIPPING": "1.0",
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    }


# -- jax -------------------------------------------------------------------------------------------


@sky.compute
def sum_over_ranks() -> tuple[int, float]:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("ranks",))
    own = np.full(1, jax.process_index() + 1.0)
    spread = NamedSharding(mesh, PartitionSpec("ranks"))
    everyone = jax.make_array_from_process_local_data(spread, own)
    return jax.process_count(), float(jax.jit(lambda x: x.sum())(everyone))


@sky.compute
def lose_rank_1() -> None:
    if sky.instance_info().rank == 1:  # type: ignore[union-attr]
        os.kill(os.getpid(), signal.SIGKILL)


def test_jax_sums_over_ranks_and_goes_on_after_one_is_lost(jax_pool: sky.ComputePool) -> None:
    assert sum_over_ranks() @ jax_pool == [(2, 3.0)] * 2
    with pytest.raises(RankLost, match="rank 1 is lost.*All restart with empty names"):
        lose_rank_1() @ jax_pool
    assert sum_over_ranks() @ jax_pool == [(2, 3.0)] * 2
    jax_pool.scale(3)
    assert sum_over_ranks() @ jax_pool == [(3, 6.0)] * 3


@sky.compute
def fit_with_keras() -> dict[str, Any]:
    import keras
    import numpy as np

    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    x, y = sky.shard(x, x.sum(1, keepdims=True))
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    losses = model.fit(x, y, epochs=4, batch_size=8, verbose=0).history["loss"]
    return {
        "backend": keras.backend.backend(),
        "share": len(x),
        "losses": losses,
        "weights": model.get_weights()[0].ravel().tolist(),
    }


def test_keras_on_jax_is_data_parallel(jax_pool: sky.ComputePool) -> None:
    # Two ranks, or three where another test has scaled the pool.
    one, *others = fit_with_keras() @ jax_pool
    assert others
    assert all(each == one for each in others)
    assert (one["backend"], one["share"]) == ("jax", 96 // (1 + len(others)))
    assert one["losses"][-1] < one["losses"][0]


def test_keras_on_torch_trains_a_model_on_each_rank(torch_pool: sky.ComputePool) -> None:
    for seen in fit_with_keras() @ torch_pool:
        assert seen["backend"] == "torch"
        assert seen["losses"][-1] < seen["losses"][0]
