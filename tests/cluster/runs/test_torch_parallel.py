"""torch's ways to spread a model over ranks work in cells as they do under torchrun.

FSDP2, and tensor parallelism on one and on two dimensions, train in `test_sharded`.
"""

from __future__ import annotations

import pytest

from jupyter_sky.cluster.errors import RemoteError
from tests.cluster.cells import SUMMED
from tests.cluster.conftest import Cells
from tests.installed import on_first_use

torch = on_first_use("torch")

PIPELINE = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(dist.get_world_size())]
stage_module = layers[rank]
group = init_device_mesh("cpu", (dist.get_world_size(),)).get_group()
stage = PipelineStage(
    stage_module, rank, dist.get_world_size(), torch.device("cpu"), group=group)
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(stage_module.parameters(), lr=0.1)
inputs, target = torch.randn(16, 8), torch.randn(16, 8)

losses = []
for _ in range(5):
    optimizer.zero_grad()
    found = []
    if rank == 0:
        schedule.step(inputs)
    elif rank == dist.get_world_size() - 1:
        schedule.step(target=target, losses=found)
    else:
        schedule.step()
    optimizer.step()
    losses += [sum(found).item() / 4] if found else []
"""


def test_a_pipeline_trains(cells: Cells) -> None:
    values = {rank: ["losses", "stage_module", "inputs", "target"] for rank in range(4)}
    found = cells.run(PIPELINE, values=values)
    losses = found[3]["losses"]
    assert found[0]["losses"] == [] and losses == sorted(losses, reverse=True)
    # The stages that come back make the model that was trained: it goes on where they were.
    model = torch.nn.Sequential(*(found[rank]["stage_module"] for rank in range(4)))
    loss = torch.nn.functional.mse_loss(model(found[0]["inputs"]), found[0]["target"])
    assert loss.item() < losses[-1] < losses[0]


def test_a_mesh_of_two_dimensions_has_a_group_for_each(cells: Cells) -> None:
    code = """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
sums = []
for name in ("data", "tensor"):
    value = torch.tensor([rank])
    dist.all_reduce(value, group=mesh.get_group(name))
    sums.append(value.item())
"""
    cells.run("from torch.distributed.device_mesh import init_device_mesh")
    found = cells.run(code, values={rank: ["sums"] for rank in range(4)})
    assert [found[rank]["sums"] for rank in range(4)] == [[2, 1], [4, 1], [2, 5], [4, 5]]


SHARDED = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

def made():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()

def cut(*_):
    raise ValueError("cut off")

model, plain = made(), made()
for layer in model:
    fully_shard(layer)
fully_shard(model)
"""


def test_a_sharded_model_trains_after_an_error_in_the_middle_of_a_step(cells: Cells) -> None:
    """Where ranks were cut off at different places, as by a Stop, they begin the next together."""
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("torch 2.13 is the first that can")
    cells.run(SHARDED)
    with pytest.raises(RemoteError, match="cut off"):
        cells.run(
            "last = model[-1]\n"
            "hook = (last.register_forward_hook if rank else last.register_forward_pre_hook)(cut)\n"
            "train(model)"
        )
    cells.run("from torch.distributed.fsdp import FSDPModule as Sharded")
    cells.run("reset = Sharded.reset_iter_state; del Sharded.reset_iter_state")  # as before 2.13
    with pytest.raises(RemoteError, match="cut off"):
        cells.run("train(model)")
    assert "it cannot go on: make it again. `sky.save` saves its weights" in cells.text("stderr")
    code = """
hook.remove()
Sharded.reset_iter_state = reset
model.reset_iter_state()
train(model)
train(plain)
pairs = zip(model.parameters(), plain.parameters())
same = all(torch.allclose(each.full_tensor(), other) for each, other in pairs)
"""
    found = cells.run(code, values={rank: ["same"] for rank in range(4)})
    assert all(found[rank]["same"] for rank in range(4))


FSDP1 = """
from functools import partial
from torch.distributed.fsdp import FullyShardedDataParallel
FSDP = partial(
    FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params={use_orig_params})

def whole(model):
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return flat(model)

def flat(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])

sharded = FSDP(nn.Sequential(*(FSDP(each) for each in made())))
plain = made()
"""


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_a_model_under_fsdp1_trains_on_after_errors_in_the_middle_of_steps(
    cells: Cells, use_orig_params: bool
) -> None:
    cells.run(SHARDED)
    cells.run(FSDP1.format(use_orig_params=use_orig_params))
    # The group is formed again after each of them, and parameters were gathered on some ranks.
    for register in ("forward_hook", "forward_pre_hook", "full_backward_hook"):
        with pytest.raises(RemoteError, match="cut off"):
            cells.run(
                "last = sharded.module[-1].module\n"
                f"register = last.register_{register} if rank else last.register_forward_pre_hook\n"
                "hook = register(cut)\n"
                "train(sharded)"
            )
        cells.run("hook.remove()\nfor each in (sharded, plain): each.zero_grad(); train(each)")
        same = "torch.allclose(whole(sharded), flat(plain), atol=1e-6)"
        assert cells.ask(same) == [True] * 4


def test_a_group_that_a_cell_has_destroyed_is_there_for_the_next_cell(cells: Cells) -> None:
    cells.run("import torch, torch.distributed as dist")
    for ranks in None, [1]:
        cells.run("dist.destroy_process_group()", ranks=ranks)
        assert cells.ask(SUMMED) == [4.0] * 4


def test_rpc_meets_where_the_group_has_met(cells: Cells) -> None:
    code = """
from torch.distributed import rpc
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=dist.get_world_size())
answer = rpc.rpc_sync(f"worker{(rank + 1) % 4}", pow, args=(rank, 2))
"""
    asked = {rank: ["answer"] for rank in range(4)}
    found = cells.run(code, values=asked)
    assert [found[rank]["answer"] for rank in range(4)] == [0, 1, 4, 9]
    # After an error the group is formed again, and RPC has ended with the former one.
    with pytest.raises(RemoteError, match="pow"):
        cells.run("rpc.rpc_sync('worker1', pow) if rank == 0 else dist.barrier()")
    with pytest.raises(RemoteError, match="RPC has not been initialized"):
        cells.run("rpc.shutdown()")
    found = cells.run(f"{code}rpc.shutdown()", values=asked)
    assert [found[rank]["answer"] for rank in range(4)] == [0, 1, 4, 9]


def test_a_mesh_goes_on_after_an_error_in_one_of_its_groups(cells: Cells) -> None:
    code = """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
group = mesh.get_group("tensor")
if rank == 3:
    raise ValueError("no data")
dist.barrier(group=group)
"""
    cells.run("from torch.distributed.device_mesh import init_device_mesh")
    cells.run("from torch.distributed.nn import functional")
    with pytest.raises(RemoteError, match="no data"):
        cells.run(code)
    total = cells.run("total = functional.all_reduce(torch.ones(1)).item()", values={0: ["total"]})
    assert total[0]["total"] == 4
    for group in ("group", 'mesh.get_group("tensor")'):
        mine = "mine = torch.tensor([float(rank)])"
        cells.run(f"{mine}; pair = torch.ones(2); dist.all_gather_into_tensor(pair, mine, {group})")
        assert cells.ask("pair.tolist()") == [[0.0, 1.0], [0.0, 1.0], [2.0, 3.0], [2.0, 3.0]]
    assert cells.run(PIPELINE, values={3: ["losses"]})[3]["losses"]
