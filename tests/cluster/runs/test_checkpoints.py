"""Checkpoints that ranks save together, and load on another number of ranks."""

from __future__ import annotations

import copy
import json
import os
import signal
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.errors import Interrupted, RemoteError
from tests.cluster.conftest import Cells
from tests.cluster.runs.test_sharded import FSDP1, FSDP2, NET, TENSOR_PARALLEL

torch = pytest.importorskip("torch")

WAYS = {"FSDP2": FSDP2, "FSDP1": FSDP1.format(use=""), "tensor-parallel": TENSOR_PARALLEL}
DDP = "model = nn.parallel.DistributedDataParallel(made())"


@pytest.fixture
def cells(cells: Cells, tmp_path: Path) -> Cells:
    cells.run(f"{NET}\nimport jupyter_sky as sky\npath = {str(tmp_path / 'run')!r}")
    return cells


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wait", [True, False])
def test_ranks_go_on_where_they_were(cells: Cells, way: str, wait: bool) -> None:
    """With the optimizer's state: the next steps are the same as without a break."""
    straight = f"{WAYS[way]}\noptimizer = step(model)\n"
    broken = f"""{straight}
saving = sky.save(path, wait={wait}, model=model, optimizer=optimizer, step=3)
step_on(model, optimizer)
saving.wait()
straight = model
{WAYS[way]}
optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
others = sky.load(path, model=model, optimizer=optimizer)
step_on(model, optimizer)
"""
    cells.run("""
def step_on(model, optimizer):
    torch.manual_seed(2)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
""")
    found = cells.run(broken, values={0: ["straight:state", "model:state", "others"]})[0]
    assert found["others"] == {"step": 3}
    for name, value in found["straight:state"].items():
        if name != "seen":  # which counts the calls
            torch.testing.assert_close(found["model:state"][name], value)


def test_it_is_loaded_on_another_number_of_ranks(cells: Cells, tmp_path: Path) -> None:
    """What four ranks have saved, one loads: this process, which is in no group."""
    code = f"{FSDP2}\noptimizer = step(model)\nsky.save(path, model=model, optimizer=optimizer)"
    expected = cells.run(code, values={0: ["model"]})[0]["model"]
    model = copy.deepcopy(expected).requires_grad_(True)
    with torch.no_grad():
        model.up.weight.zero_()
    optimizer = torch.optim.Adam(model.parameters())
    sky.load(tmp_path / "run", model=model, optimizer=optimizer)
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    assert optimizer.state[model.up.weight]["exp_avg"].shape == (1030, 10)
    # And back: what one process has saved, four ranks load, wrapped in another way.
    sky.save(tmp_path / "run", model=model, step=7)
    found = cells.run(
        f"{DDP}\nothers = sky.load(path, model=model)", values={0: ["model:state", "others"]}
    )[0]
    assert found["others"] == {"step": 7}
    assert torch.equal(found["model:state"]["up.weight"], expected.up.weight)


def test_each_rank_writes_its_own_parts(cells: Cells, tmp_path: Path) -> None:
    cells.run(f"{FSDP2}\nsky.save(path, model=model)")
    [save] = [path for path in (tmp_path / "run").iterdir() if path.is_dir()]
    parts = sorted(path.name for path in save.glob("*.distcp"))
    assert parts == [f"__{rank}_0.distcp" for rank in range(4)]


def test_a_folder_that_not_every_rank_sees(cells: Cells, tmp_path: Path) -> None:
    homes = f"import os\nhome, os.environ['HOME'] = os.environ['HOME'], f'{tmp_path}/{{rank}}'\n"
    try:
        with pytest.raises(RemoteError) as caught:
            cells.run(f"{homes}{FSDP2}\nsky.save('~/run', model=model)")
        assert str(caught.value) == (
            "~/run is on the disk of rank 0 alone, and ranks 1-3 do not see it: name a folder that "
            "all nodes share, or a bucket (s3://…)."
        )
        assert not list((tmp_path / "0" / "run").iterdir())
    finally:
        cells.run("os.environ['HOME'] = home")


def test_a_save_that_is_stopped_leaves_the_former_one(cells: Cells, tmp_path: Path) -> None:
    cells.run(f"{FSDP2}\nsky.save(path, model=model, step=1)")
    former = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    code = "print('here')\nif rank == 2: time.sleep(600)\nsky.save(path, model=model, step=2)"
    run = cells.start(code)
    with pytest.raises(Interrupted):
        run.follow(lambda event: os.kill(os.getpid(), signal.SIGINT))
    assert json.loads((tmp_path / "run" / "checkpoint.json").read_text()) == former
    assert cells.ask("sky.load(path, model=model)") == [{"step": 1}] * 4
    cells.run("sky.save(path, model=model, step=3)")
    assert len(list((tmp_path / "run").iterdir())) == 2  # nothing of the one that was stopped
    assert cells.ask("sky.load(path)") == [{"step": 3}] * 4


def test_what_is_wrong_on_one_rank_is_said_with_the_rank(cells: Cells) -> None:
    cells.run(f"{FSDP2}\nsky.save(path, model=model, step=1)")
    with pytest.raises(RemoteError, match=r"was not loaded: .* model\.0\.\w+ \(rank"):
        cells.run("other = nn.Sequential(model)\nsky.load(path, model=other)")
