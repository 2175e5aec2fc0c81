"""What `%sky profile` costs the run that it looks at: a training loop, looked at and left alone."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from tests.benchmarks.measure import Base, Row, Target, spread
from tests.benchmarks.notebook import ROOT

_ROUNDS = 7
_STEPS = 1500

_LOOP = f"""
import json, time
import torch
from jupyter_sky.cluster.profiling.profiler import RATE
from jupyter_sky.node.rank.inspection.collectives import Recorded
from jupyter_sky.node.rank.profiling.sampler import Sampler

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(32, 64)

def train(depth=20):
    if depth:
        return train(depth - 1)
    for _ in range({_STEPS}):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

sampler, told = Sampler(Recorded()), []
train()
left, looked = [], []
for _ in range({_ROUNDS}):
    for is_looked_at, times in ((False, left), (True, looked)):
        seconds = 600.0 if is_looked_at else 0.0
        sampler.begin(
            {{"op": "sample", "number": 1, "seconds": seconds, "rate": RATE}}, told.append
        )
        before = time.process_time()
        train()
        times.append(1000 * (time.process_time() - before) / {_STEPS})
came, asked = (sum(each[name] for each in told) for name in ("came", "asked"))
print(json.dumps([left, looked, came / asked]))
"""


def sampling(peers: bool) -> list[Row]:
    """Take turns in one process; compared is processor time, that of the looking with it."""
    command = [sys.executable, "-c", _LOOP]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    left, looked, came = json.loads(ran.stdout.splitlines()[-1])
    return [
        Row(
            "training loop, looked at by `%sky profile`",
            statistics.median(looked),
            "ms a step",
            Target(1.03, ratio=True),
            Base("left alone", statistics.median(left)),
            note=f"processor time {spread(looked, 'ms a step')}, left alone "
            f"{spread(left, 'ms a step')}; {100 * came:.0f} % of the samples came",
        )
    ]
