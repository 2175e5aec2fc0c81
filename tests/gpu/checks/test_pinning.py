"""Which GPU a rank sees: its own, before anything touches CUDA, and never in the fork server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cluster.cells import Cells
from tests.gpu.figures import Check
from tests.gpu.machine import GPUMachine, smi

Make = Callable[..., Cells]

pytestmark = pytest.mark.alone

UUID = "'GPU-' + str(torch.cuda.get_device_properties(0).uuid)"


def test_each_rank_sees_its_own_gpu_before_cuda_is_touched(cluster: Make, gpu: GPUMachine) -> None:
    cells = cluster(1, framework=False)
    cells.run("import torch")
    count = len(gpu.gpus)
    assert cells.ask("torch.cuda.is_initialized()") == [False] * count
    assert cells.ask("torch.cuda.device_count()") == [1] * count
    assert cells.ask(UUID) == [each.uuid for each in gpu.gpus]


def test_a_gpu_given_by_its_uuid_is_the_one_that_ranks_get(
    cluster: Make, gpu: GPUMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu.gpus[-1].uuid)
    cells = cluster(1, framework=False)
    cells.run("import torch")
    assert cells.ask(UUID) == [gpu.gpus[-1].uuid]
    assert cells.cluster.snapshot()["cluster"]["gpu"] == gpu.gpus[-1].name


def test_the_fork_server_never_touches_cuda(cells: Cells, check: Check) -> None:
    cells.run("import torch\nx = torch.ones(1, device='cuda')")
    pid = cells.cluster.state.ranks[0].pid
    assert pid is not None
    if not (opened := _devices(pid)):
        pytest.skip("the driver of this machine has no files in /dev that a process would open")
    parent = psutil.Process(pid).parent()
    assert parent is not None
    assert _devices(parent.pid) == []
    check.note(f"the rank has {len(opened)} files of the driver open, the fork server none")
    # After a kill, the next process in its place has the GPU at once.
    psutil.Process(pid).kill()
    with pytest.raises(Exception, match="rank 0"):
        cells.run("import time; time.sleep(60)")
    cells.run("import torch\nx = torch.ones(1, device='cuda')")
    assert cells.ask("x.item()") == [1.0]


def _devices(pid: int) -> list[str]:
    files = Path(f"/proc/{pid}/fd").iterdir()
    targets = (str(each.readlink()) for each in files if each.is_symlink())
    return [each for each in targets if each.startswith("/dev/nvidia")]


def test_what_ranks_take_of_a_gpu_is_given_back(cluster: Make) -> None:
    before = _used()
    cells = cluster(1, framework=False)
    cells.run("import torch\nx = torch.empty(2**31, dtype=torch.uint8, device='cuda')")
    assert _used() > before + 2000
    cells.cluster.restart()
    cells.run("pass")
    assert _used() < before + 1000


def _used() -> float:
    """Return the MiB in use on all GPUs."""
    rows = smi("memory.used")
    assert not isinstance(rows, str), rows
    return sum(float(row[0]) for row in rows)
