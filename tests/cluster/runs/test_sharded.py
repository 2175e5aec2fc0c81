"""Sharded models come back whole: FSDP2, FSDP1, tensor parallelism and both; their states too."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.serialization import blobs, pickling
from tests.cluster.conftest import Cells
from tests.cluster.runs.test_stop import stop_at_first_line
from tests.installed import on_first_use

torch = on_first_use("torch")

NET = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(10, 1030)        # not a multiple of the ranks, and large: a blob
        self.down = nn.Linear(1030, 10)
        self.tied = nn.Linear(10, 10, bias=False)
        self.again = nn.Linear(10, 10, bias=False)
        self.again.weight = self.tied.weight
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen += 1
        return self.again(self.tied(self.down(self.up(x).relu())))

def made(kind=Net):
    torch.manual_seed(0)
    return kind()

def step(model):
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
    return optimizer
"""

FSDP2 = """
model = made()
fully_shard([model.tied, model.again])
fully_shard(model.up)
fully_shard(model)
"""
FSDP1 = """
model = made()
model.up = FullyShardedDataParallel(model.up, device_id=torch.device("cpu"){use})
model = FullyShardedDataParallel(model, device_id=torch.device("cpu"){use})
"""
TENSOR_PARALLEL = """
class Wide(Net):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(10, 1032), nn.Linear(1032, 10)
model = parallelize_module(
    made(Wide), init_device_mesh("cpu", (4,)), {"up": ColwiseParallel(), "down": RowwiseParallel()})
"""
TWO_DIMENSIONS = """
class Wide(Net):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(10, 1032), nn.Linear(1032, 10)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
model = made(Wide)
parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
fully_shard(model, mesh=mesh["data"])
"""

WAYS = {
    "FSDP2": FSDP2,
    "FSDP1": FSDP1.format(use=", use_orig_params=True"),
    "FSDP1-flat": FSDP1.format(use=""),
    "tensor-parallel": TENSOR_PARALLEL,
    "both": TWO_DIMENSIONS,
}


@pytest.fixture
def cells(cells: Cells) -> Cells:
    cells.run(NET)
    return cells


@pytest.mark.parametrize("way", WAYS)
def test_a_model_comes_back_whole(cells: Cells, way: str) -> None:
    expected = f"expected = made(Wide) if 'Wide' in {WAYS[way]!r} else made()\nstep(expected)"
    asked = ["model", "model:state", "expected"]
    [found] = cells.run(f"{WAYS[way]}\nstep(model)\n{expected}", values={0: asked}).values()
    model, state, expected = (found[name] for name in asked)
    assert type(model) is type(expected)
    names = [name for name, _ in expected.named_parameters()]
    assert sorted(name for name, _ in model.named_parameters()) == sorted(names)
    assert model.again.weight is model.tied.weight
    for name, value in expected.state_dict().items():
        for found in (state[name], model.state_dict()[name]):
            assert type(found) is torch.Tensor and found.device.type == "cpu"
            torch.testing.assert_close(found, value, rtol=1e-3, atol=1e-4)
    assert list(state) == list(expected.state_dict())
    assert all(type(each) is torch.nn.Parameter for each in model.parameters())
    assert not (model._forward_hooks or model._forward_pre_hooks or model.up._forward_hooks)
    model(torch.ones(2, 10)).sum().backward()  # no rank is asked
    assert model.up.weight.grad is not None
    left = cells.ask("type(model).__name__, len([p for p in model.parameters()])")
    assert len(set(left)) == 1 and left[0][1] > 0  # the ranks have what they had
    assert cells.run("step(model)") == {}


def test_a_model_and_its_optimizer_come_back_together(cells: Cells) -> None:
    found = cells.run(f"{FSDP2}\noptimizer = step(model)", values={0: ["model", "optimizer"]})[0]
    model, optimizer = found["model"], found["optimizer"]
    assert optimizer.param_groups[0]["params"][0] is next(iter(model.parameters()))
    model(torch.ones(2, 10)).sum().backward()
    optimizer.step()
    assert optimizer.state[model.up.weight]["exp_avg"].shape == (1030, 10)


def test_a_model_within_something_else_and_from_every_rank(cells: Cells) -> None:
    code = f"{FSDP2}\nresult = {{'parts': [model], 'rank': rank}}"
    found = cells.run(code, values={rank: ["result"] for rank in range(4)})
    results = [found[rank]["result"] for rank in range(4)]
    assert [each["rank"] for each in results] == [0, 1, 2, 3]
    assert [each["parts"][0].up.weight.shape for each in results] == [(1030, 10)] * 4


def test_what_a_call_returns_is_whole_too(cells: Cells) -> None:
    cells.run(FSDP2)
    call, parts = blobs.pack(pickling.dump(partial(eval, "__import__('__main__').model")))

    def returned(*ranks: int) -> dict[int, Any]:
        update = cells.cluster.sync.update((), {}, ranks)
        run = cells.cluster.run(Task(ranks, call=call, blobs=parts, update=update))
        run.follow()
        return run.values()

    assert [each.up.weight.shape for each in returned(0, 1, 2, 3).values()] == [(1030, 10)] * 4
    with pytest.raises(RemoteError, match="ranks 0, 2-3 did not take part"):
        returned(1)


def test_ranks_with_models_of_their_own_are_not_awaited(cells: Cells) -> None:
    """As stages of a pipeline: two meshes, and only those who have a part take part."""
    code = """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "data"))["data"]
stage = nn.Linear(10, 1030 + rank // 2)
fully_shard(stage, mesh=mesh)
"""
    found = cells.run(code, values={0: ["stage"], 2: ["stage"]})
    assert [found[rank]["stage"].weight.shape for rank in (0, 2)] == [(1030, 10), (1032 - 1, 10)]


@pytest.mark.parametrize(
    ("code", "ranks", "said"),
    [
        (
            "pass",
            [0, 1],
            "ranks 0-3, and ranks 2-3 did not take part: run this on all of its ranks",
        ),
        ("if rank == 2: del model", None, "rank 2 cannot take part in gathering it"),
        ("if rank == 3: model = made()", None, "rank 3 cannot take part in gathering it"),
        ("optimizer = step(flat)", None, "sky.save(path, model=…, optimizer=…)"),
        ("import threading; model.lock = threading.Lock()", None, "model.lock"),
    ],
)
def test_what_cannot_be_gathered_is_said(
    cells: Cells, code: str, ranks: list[int] | None, said: str
) -> None:
    flat = f"{FSDP1.format(use='')}\nflat = model\n" if "flat" in code else ""
    cells.run(f"{flat}{FSDP2}")
    name = "optimizer" if flat else "model"
    with pytest.raises(RemoteError) as caught:
        cells.run(code, ranks=ranks, values={0: [name]})
    assert said in str(caught.value)
    assert len(caught.value.failures) == 1
    assert cells.ask("dist.is_initialized() and rank") == [0, 1, 2, 3]


def test_an_error_before_the_gathering_releases_the_others(cells: Cells) -> None:
    with pytest.raises(RemoteError, match="no data") as caught:
        cells.run(f"{FSDP2}\nif rank == 1: raise ValueError('no data')", values={0: ["model"]})
    assert isinstance(caught.value, ValueError)
    [found] = cells.run(FSDP2, values={0: ["model"]}).values()
    assert found["model"].up.weight.shape == (1030, 10)


def test_stop_while_a_rank_is_awaited(cells: Cells) -> None:
    cells.run(FSDP2)
    run = cells.start("print('here')\nif rank == 1: time.sleep(600)", values={0: ["model"]})
    stop_at_first_line(run)
    assert cells.ask("model.up.weight.shape[0]") == [1030] * 4  # nothing is lost
    assert (
        cells.run("", values={0: ["model:state"]})[0]["model:state"]["up.weight"].numel() == 10300
    )


def test_a_state_dictionary_of_anything_that_has_one(cells: Cells) -> None:
    code = f"{FSDP2}\noptimizer = step(model)\nplain = nn.parallel.DistributedDataParallel(made())"
    found = cells.run(code, values={0: ["optimizer:state", "plain:state"]})[0]
    assert found["optimizer:state"]["state"][0]["exp_avg"].numel() in (100, 10300)
    assert list(found["plain:state"])[:2] == ["seen", "up.weight"]
    with pytest.raises(RemoteError, match="state dictionary, and rank, of type int, has none"):
        cells.run("", values={0: ["rank:state"]})
