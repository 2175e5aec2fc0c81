"""DDP on the GPUs of this machine, in a cell and under ``torchrun``, in turns."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable

import pytest

import jupyter_sky as sky
from tests.cluster.cells import Cells
from tests.gpu.figures import Check
from tests.gpu.machine import GPUMachine
from tests.paths import ROOT

pytestmark = pytest.mark.alone

ROUNDS = 3
LEAST = 0.97  # of torchrun's speed; from one run to the next it varies by so much


def test_training_is_as_fast_as_under_torchrun(
    cluster: Callable[..., Cells], gpu: GPUMachine, check: Check
) -> None:
    count = len(gpu.gpus)
    cells = cluster(1, framework=sky.plugins.torch(single_rank=True))
    theirs, ours = [], []
    for _ in range(ROUNDS):
        theirs.append(_torchrun(count))
        cells.run("from tests.gpu.checks.ddp import train\nspeed = train()")
        ours.append(cells.ask("speed")[0])
    ratio = statistics.median(ours) / statistics.median(theirs)
    check.note(
        f"{statistics.median(ours):.0f} samples/s, torchrun {statistics.median(theirs):.0f}: "
        f"{ratio:.3f} ×"
    )
    assert ratio >= LEAST


def _torchrun(count: int) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", f"--nproc-per-node={count}", "-m", "tests.gpu.checks.ddp"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout.split()[-1])
