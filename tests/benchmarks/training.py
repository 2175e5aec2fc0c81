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

_CELL = """%%sky --nodes 4 --out speed
from tests.benchmarks.ddp import train

speed = train()
"""


def training(peers: bool) -> list[Row]:
    """Take turns with ``torchrun``; its start and ours do not count."""
    with SkyNotebook(_THREADS) as notebook:
        theirs, ours = alternate(_torchrun, lambda: _sky(notebook), rounds=_ROUNDS)
    return [
        Row(
            "DDP training loop",
            statistics.median(ours),
            "samples/s",
            Target(0.98, ratio=True, least=True),
            Base("torchrun", statistics.median(theirs)),
            note=f"{spread(ours, 'samples/s')}; torchrun {spread(theirs, 'samples/s')}",
        )
    ]


def _sky(notebook: SkyNotebook) -> float:
    notebook.run(_CELL)
    return _speed(*notebook.value("speed"))


def _torchrun() -> float:
    command = [sys.executable, "-m", *_RUN.split(), "-m", "tests.benchmarks.ddp"]
    env = {**os.environ, **_THREADS}
    ran = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    speed, threads = ran.stdout.split()
    return _speed(float(speed), int(threads))


def _speed(speed: float, threads: int) -> float:
    assert threads == 1, f"{threads} threads a rank: the two would not be alike"
    return speed
