"""Training speed in a cell, over that of the same loop under ``torchrun``."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from tests.benchmarks.measure import Base, Row, Target, alternate, spread
from tests.benchmarks.notebook import ROOT, SkyNotebook

_ROUNDS = 5
_THREADS = {"OMP_NUM_THREADS": "1"}
_RUN = "torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 4"

_CELL = """%%sky --nodes 4 --out figures
from tests.benchmarks.cases.workloads.ddp import train

figures = train()
"""


def training(peers: bool) -> list[Row]:
    """Take turns with ``torchrun``; its start and ours do not count.

    The note gives the processor time as well: what else the machine does hardly changes it.
    """
    with SkyNotebook(_THREADS) as notebook:
        theirs, ours = alternate(_torchrun, lambda: _sky(notebook), rounds=_ROUNDS)
    (their_speeds, their_costs), (speeds, costs) = (
        zip(*theirs, strict=True),
        zip(*ours, strict=True),
    )
    return [
        Row(
            "DDP training loop",
            statistics.median(speeds),
            "samples/s",
            Target(0.98, ratio=True, least=True),
            Base("torchrun", statistics.median(their_speeds)),
            note=f"{spread(speeds, 'samples/s')}, torchrun {spread(their_speeds, 'samples/s')}; "
            f"processor time {spread(costs, 'ms a sample')}, torchrun {spread(their_costs, 'ms')}",
        )
    ]


def _sky(notebook: SkyNotebook) -> tuple[float, float]:
    notebook.run(_CELL)
    return notebook.value("figures")


def _torchrun() -> tuple[float, float]:
    command = [sys.executable, "-m", *_RUN.split(), "-m", "tests.benchmarks.cases.workloads.ddp"]
    env = {**os.environ, **_THREADS}
    ran = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    speed, cost = map(float, ran.stdout.split())
    return speed, cost
