"""Replicas of models stay equal, wherever a Stop or an error has cut a step of training off."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from datetime import timedelta

import pytest

from jupyter_sky.plugins.torch_group import comparison, former, trained
from tests.cluster.cells import Cells, start, trains
from tests.cluster.runs.test_stop import stop_at_first_line
from tests.installed import on_first_use, skip_without

torch = on_first_use("torch")

PREPARE = """
import os, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
schedulers = torch.optim.lr_scheduler
rank = dist.get_rank()

def made(*sizes):
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(*sizes or (2, 1)))

def loss(model):
    return model(torch.full((1, 2), rank + 1.0)).square().sum()
"""

ONE_STEP_APART = """
step()
if rank: step_of_optimizers()
dist.barrier()
if rank == 0: print('here')
time.sleep(600)
"""
"""Ranks have made one step more than rank 0, and none is in a collective."""


@pytest.fixture(scope="module")
def cells() -> Iterator[Cells]:
    cells = start(3, framework=trains())
    cells.run(PREPARE)
    yield cells
    cells.cluster.down()


def assert_equal(cells: Cells, expression: str) -> None:
    first, *others = cells.ask(expression)
    assert others == [first] * 2


ADAM = """
model = made()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scheduler = schedulers.StepLR(optimizer, 3)
def step_of_optimizers():
    optimizer.step(); scheduler.step()
def step():
    optimizer.zero_grad(); loss(model).backward(); step_of_optimizers()
"""


def test_replicas_that_a_stop_outside_of_a_collective_leaves_different_are_made_equal(
    cells: Cells,
) -> None:
    cells.run(f"{ADAM}\ngroup = dist.group.WORLD")
    stop_at_first_line(cells.start(ONE_STEP_APART))
    cells.run("with torch.no_grad(): evaluated = model(torch.ones(1, 2))", ranks=[0])
    assert_equal(cells, "model.module.weight.tolist()")
    cells.run("step(); step()")
    assert_equal(cells, "model.module.weight.tolist()")
    assert cells.ask("scheduler.last_epoch") == [3] * 3

    # Where nothing differs, nothing is sent: this rank would wait for the other one here.
    with pytest.raises(ValueError):
        cells.run("if rank == 1: raise ValueError")
    cells.run("if rank == 0: model(torch.ones(1, 2))")
    assert cells.ask("dist.group.WORLD is group") == [True] * 3


def test_replicas_are_made_equal_where_the_code_has_caught_the_stop(cells: Cells) -> None:
    indented = ONE_STEP_APART.replace("\n", "\n    ")
    cells.run(f"{ADAM}")
    run = cells.start(f"try:{indented}\nexcept KeyboardInterrupt: print('caught')")
    run.follow(lambda event: cells.cluster.interrupt_run(run.id))
    cells.run("step()")
    assert_equal(cells, "model.module.weight.tolist()")


def test_gradients_of_a_step_that_a_rank_has_made_do_not_count_twice(cells: Cells) -> None:
    cells.run(ADAM)
    stop_at_first_line(
        cells.start(
            "loss(model).backward()\n"
            "if rank == 0: step_of_optimizers(); optimizer.zero_grad(); print('here')\n"
            "time.sleep(600)"
        )
    )
    cells.run("loss(model).backward()\nleft = model.module.weight.grad.tolist()")
    cells.run("optimizer.zero_grad(); loss(model).backward()")
    assert cells.ask("left == model.module.weight.grad.tolist()") == [True] * 3


def test_an_optimizer_of_two_models_is_made_equal(cells: Cells) -> None:
    cells.run(
        "encoder, decoder = made(2, 3), made(3, 1)\n"
        "parameters = [*encoder.parameters(), *decoder.parameters()]\n"
        "optimizer = torch.optim.Adam(parameters, lr=0.1)\n"
        "warm_up = [schedulers.LinearLR(optimizer, 0.1, 1.0, n) for n in (2, 4)]\n"
        "scheduler = schedulers.SequentialLR(optimizer, warm_up, [2])\n"
        "def step_of_optimizers():\n"
        "    optimizer.step(); scheduler.step()\n"
        "def step():\n"
        "    optimizer.zero_grad(); loss(lambda x: decoder(encoder(x))).backward()\n"
        "    step_of_optimizers()"
    )
    stop_at_first_line(cells.start(ONE_STEP_APART))
    cells.run("for _ in range(3): step()")
    assert_equal(cells, "[each.tolist() for each in parameters]")
    assert_equal(cells, "[optimizer.state[each]['exp_avg'].tolist() for each in parameters]")
    assert cells.ask("[each.last_epoch for each in (scheduler, *warm_up)]") == [[4, 1, 2]] * 3


def test_models_of_some_of_the_ranks_are_made_equal(cells: Cells) -> None:
    cells.run(
        "pair = dist.new_group([1, 2])\n"
        "step = step_of_optimizers = lambda: None\n"
        "if rank:\n"
        "    torch.manual_seed(0)\n"
        "    model = DistributedDataParallel(nn.Linear(2, 1), process_group=pair)\n"
        "    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
        "    def step_of_optimizers(): optimizer.step()\n"
        "    def step():\n"
        "        optimizer.zero_grad(); loss(model).backward(); optimizer.step()\n"
    )
    stop_at_first_line(cells.start(ONE_STEP_APART.replace("if rank:", "if rank == 2:")))
    cells.run("step()\nif rank: left = model.module.weight.tolist(), len(optimizer.state)")
    first, second = cells.ask("left", ranks=[1, 2])
    assert first == second


def test_shards_that_several_ranks_have_are_made_equal(cells: Cells) -> None:
    """As with a mesh of two dimensions, of which one is of replicas."""
    cells.run(
        "import torch.distributed.fsdp as fsdp\n"
        "mesh = dist.init_device_mesh('cpu', (3, 1), mesh_dim_names=('replicas', 'shards'))\n"
        "torch.manual_seed(0)\n"
        "model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))\n"
        "for part in (*model, model): fsdp.fully_shard(part, mesh=mesh)\n"
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
        "def step_of_optimizers(): optimizer.step()\n"
        "def step(): optimizer.zero_grad(); loss(model).backward(); optimizer.step()"
    )
    stop_at_first_line(cells.start(ONE_STEP_APART))
    state = (
        "[(each.to_local().tolist(), optimizer.state[each]['exp_avg'].to_local().tolist(), "
        "optimizer.state[each]['step'].item()) for each in model.parameters()]"
    )
    assert_equal(cells, state)
    # Those of the head are what all of them have, and nothing has to be said.
    assert cells.ask(f"{state}[0][2]") == [1.0] * 3
    assert not cells.text("stderr")
    cells.run("step(); step()")
    assert_equal(cells, state)
    assert cells.ask(f"{state}[0][2]") == [3.0] * 3


def test_where_replicas_cannot_be_made_equal_only_their_steps_fail(cells: Cells) -> None:
    cells.run(
        f"{ADAM}\n"
        "class Odd:\n"
        "    def __reduce__(self): return eval, ('1 / 0',)\n"
        "step(); optimizer.param_groups[0]['odd'] = Odd()"
    )
    stop_at_first_line(cells.start(ONE_STEP_APART))
    for code in ("pass", "step()"):
        with pytest.raises(ZeroDivisionError):
            cells.run(code)
    assert cells.ask("dist.get_rank()") == [0, 1, 2]


def test_what_scales_the_loss_is_made_equal(cells: Cells) -> None:
    cells.run(
        "model = made()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**8, growth_interval=3)\n"
        "def step(updates=True):\n"
        "    optimizer.zero_grad(); scaler.scale(loss(model)).backward(); scaler.step(optimizer)\n"
        "    if updates: scaler.update()\n"
        "step()"
    )
    run = "step(updates=rank == 1)\ndist.barrier()\nif rank == 0: print('here')\ntime.sleep(600)"
    stop_at_first_line(cells.start(run))
    cells.run("step()")
    assert cells.ask("scaler.get_scale()") == [2.0**8] * 3
    cells.run("step(); step()")
    assert cells.ask("scaler.get_scale()") == [2.0**9] * 3
    assert_equal(cells, "model.module.weight.tolist()")


def test_ranks_that_were_stopped_after_different_batches_make_the_next_step_together(
    cells: Cells,
) -> None:
    skip_without("accelerate")
    cells.run(
        "from accelerate import Accelerator\n"
        "accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)\n"
        "model = nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model, optimizer = accelerator.prepare(model, optimizer)\n"
        "def batch():\n"
        "    with accelerator.accumulate(model):\n"
        "        accelerator.backward(loss(model)); optimizer.step(); optimizer.zero_grad()\n"
        "    return accelerator.sync_gradients"
    )
    stop_at_first_line(
        cells.start(
            "batch()\nif rank: batch()\ndist.barrier()\n"
            "if rank == 0: print('here')\ntime.sleep(600)"
        )
    )
    assert cells.ask("model.module.weight.grad") == [None] * 3
    cells.run("steps = [batch() for _ in range(3)]")
    assert cells.ask("steps") == [[False, False, True]] * 3
    assert_equal(cells, "model.module.weight.tolist()")


def test_models_that_look_alike_and_are_compiled_are_made_equal(cells: Cells) -> None:
    cells.run(
        "models = [made(), made()]\n"
        "compiled = [torch.compile(each, backend='eager') for each in models]\n"
        "optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in models]\n"
        "def step_of_optimizers():\n"
        "    for each in optimizers: each.step()\n"
        "def step():\n"
        "    for n, (model, each) in enumerate(zip(compiled, optimizers)):\n"
        "        each.zero_grad(); (n + loss(model)).sqrt().backward(); each.step()\n"
        "step(); step()"
    )
    stop_at_first_line(cells.start(ONE_STEP_APART))
    # What is accumulated before the next step counts.
    cells.run("with models[0].no_sync(): (1000 * loss(models[0])).backward()")
    cells.run("loss(models[0]).backward()")
    assert min(cells.ask("models[0].module.weight.grad.abs().max().item()")) > 100
    cells.run("step()")
    assert_equal(cells, "[each.module.weight.tolist() for each in models]")
    cells.run("del models, compiled, optimizers; torch.compiler.reset()")


def test_a_model_trains_on_after_a_stop_in_its_backward_pass(cells: Cells) -> None:
    cells.run(
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.inner, self.outer = nn.Linear(2, 2), nn.Linear(2, 1)\n"
        "    def part(self, x):\n"
        "        if slow and self.seen: print('here'); time.sleep(600)\n"
        "        self.seen = True\n"
        "        return self.inner(x)\n"
        "    def forward(self, x):\n"
        "        self.seen = False\n"
        "        return self.outer(checkpoint(self.part, x, use_reentrant=False))\n"
        "torch.manual_seed(0)\n"
        "slow, model = False, DistributedDataParallel(Net())\n"
        "loss(model).backward()\n"
        "wanted = [each.grad.tolist() for each in model.parameters()]"
    )
    stop_at_first_line(cells.start("slow = True\nmodel.zero_grad(); loss(model).backward()"))
    cells.run("slow = False\nmodel.zero_grad(); loss(model).backward()")
    cells.run("model.zero_grad(); loss(model).backward()")
    assert cells.ask("wanted == [each.grad.tolist() for each in model.parameters()]") == [True] * 3


@pytest.mark.parametrize(
    "sharded",
    [
        "fsdp.fully_shard(nn.Linear(3, 3))",
        "fsdp.FullyShardedDataParallel(nn.Linear(3, 3), device_id=torch.device('cpu'))",
        "fsdp.FullyShardedDataParallel("
        "nn.Linear(3, 3), device_id=torch.device('cpu'), use_orig_params=True)",
    ],
)
def test_shards_that_are_of_different_steps_are_named(cells: Cells, sharded: str) -> None:
    cells.run(
        "import torch.distributed.fsdp as fsdp\n"
        f"model = {sharded}\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "step_of_optimizers = optimizer.step\n"
        "def step(): model(torch.ones(1, 3)).sum().backward(); optimizer.step()"
    )
    stop_at_first_line(cells.start(ONE_STEP_APART))
    cells.run("pass")
    assert "the shards of the model are of different steps" in cells.text("stderr")
    cells.run("pass")
    assert not cells.text("stderr")
    # Once there is another model, the former one is of no interest.
    cells.run("del model, optimizer, step, step_of_optimizers")
    with pytest.raises(ValueError):
        cells.run("raise ValueError")
    cells.run("pass")
    assert not cells.text("stderr")


def test_what_only_refers_to_itself_is_not_trained() -> None:
    class Mine(torch.optim.SGD):  # type: ignore[misc, name-defined]
        pass

    weights = [torch.ones(1, requires_grad=True)]
    gc.disable()
    try:
        kept, gone = Mine(weights), Mine(weights)
        gone.state["own"] = gone
        del gone
        assert [each for each in trained.find().optimizers if type(each) is Mine] == [kept]
    finally:
        gc.enable()


def test_a_group_that_takes_the_place_of_another_keeps_nothing_from_being_freed() -> None:
    class Loader:
        pass

    loader = Loader()
    gone = weakref.ref(loader)
    gc.disable()
    try:
        former.replace([])
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_a_rank_that_comes_too_late_has_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(comparison, "_PATIENCE", 0.0)
    wait = timedelta(seconds=20)
    store = torch.distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait
    )
    in_time, too_late = (comparison._Counts(store, "run") for _ in range(2))
    assert (in_time.await_all(), too_late.await_all()) == (False, False)
