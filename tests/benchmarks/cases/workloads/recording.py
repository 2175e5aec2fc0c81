"""What it costs to know where ranks hang: a DDP loop with and without its collectives recorded."""

from __future__ import annotations

import subprocess
import sys

from tests.benchmarks.measure import Base, Row, Target, alternate, spread
from tests.benchmarks.notebook import ROOT, SkyNotebook

_ROUNDS = 5
_OFF = {"TORCH_FR_BUFFER_SIZE": "0"}  # torch records nothing then
_THREADS = {"OMP_NUM_THREADS": "1"}

# Two ranks with small batches: a step takes some 40 ms of a processor, of which recording would be
# a larger part than in most trainings, and all rounds together take a minute or two.
_CELL = """%%sky --nodes 2 --out figures --hang-after {after}
from tests.benchmarks.cases.workloads.ddp import train

figures = train(batch=8)
"""

_COLLECTIVES = 20_000
_ALONE = f"""
import os, sys, time
os.environ["TORCH_FR_BUFFER_SIZE"] = sys.argv[1]
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group, tensor = dist.group.WORLD, torch.ones(1)
for _ in range(1000):
    group.allreduce([tensor]).wait()
before = time.process_time()
for _ in range({_COLLECTIVES}):
    group.allreduce([tensor]).wait()
print((time.process_time() - before) / {_COLLECTIVES}, flush=True)
os._exit(0)  # at its usual end gloo aborts the process now and then
"""


def recording(peers: bool) -> list[Row]:
    """Take turns: with nothing recorded and nobody watching, and as every cell has it.

    What is compared is processor time, which hardly depends on what else the machine does, and of
    all rounds the least: what else it does can only add to it.
    """
    with SkyNotebook(_THREADS | _OFF) as without, SkyNotebook(_THREADS) as notebook:
        plain, ours = alternate(
            lambda: _train(without, "1d"), lambda: _train(notebook, "10s"), rounds=_ROUNDS
        )
    off, on = alternate(lambda: _alone("0"), lambda: _alone("512"), rounds=_ROUNDS)
    each = 1e6 * (min(on) - min(off))
    return [
        Row(
            "DDP loop, collectives recorded",
            min(ours),
            "ms a sample",
            Target(1.01, ratio=True),
            Base("not recorded", min(plain)),
            note=f"processor time {spread(ours, 'ms a sample')}, not recorded "
            f"{spread(plain, 'ms a sample')}; {each:.1f} µs a collective by itself",
        )
    ]


def _train(notebook: SkyNotebook, after: str) -> float:
    notebook.run(_CELL.format(after=after))
    _, processor = notebook.value("figures")
    return processor


def _alone(recorded: str) -> float:
    """Return seconds of processor time of a collective in a group of one."""
    command = [sys.executable, "-c", _ALONE, recorded]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(ran.stdout.split()[-1])
