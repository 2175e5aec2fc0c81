"""A sharded model: brought to the notebook, saved by its ranks, and loaded by them.

Beside it is what one does by hand: gather the state dictionary on one rank, and `torch.save` it.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from typing import Any

from tests.benchmarks.measure import Base, Row, Target, spread
from tests.benchmarks.notebook import SkyNotebook

_ROUNDS = 3
_THREADS = {"OMP_NUM_THREADS": "1"}
_LAYERS, _WIDTH = 16, 2048
_MEGABYTES = _LAYERS * _WIDTH * _WIDTH * 4 / 1e6
_LARGEST = _WIDTH * _WIDTH * 4 / 1e6

_MODEL = f"""%%sky --nodes 4
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as state_dict
from torch import nn
from torch.distributed.fsdp import fully_shard

import jupyter_sky as sky

model = nn.Sequential()
for _ in range({_LAYERS}):
    model.append(nn.Linear({_WIDTH}, {_WIDTH}, bias=False))
    fully_shard(model[-1])
fully_shard(model)
whole = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)


def memory(line):
    status = Path("/proc/self/status").read_text()
    return next(int(text.split()[1]) for text in status.splitlines() if text.startswith(line))


class Measured:
    \"\"\"Seconds that a block takes on all ranks, and megabytes by which this one grows.\"\"\"

    def __enter__(self):
        Path("/proc/self/clear_refs").write_text("5")  # forgets its greatest extent so far
        dist.barrier()
        self.before, self.began = memory("VmRSS"), time.monotonic()
        return self

    def __exit__(self, *error):
        dist.barrier()
        self.figures = (time.monotonic() - self.began, self.grown())

    def grown(self):
        return (memory("VmHWM") - self.before) / 1024
"""

# Bytes of values, as the kernel receives them.
_COUNT = """
from jupyter_sky.cluster.network.blobs.download import Downloads

_received = 0


def _counted(self, message, size, on_piece=Downloads.on_piece):
    global _received
    _received += size
    on_piece(self, message, size)


Downloads.on_piece = _counted
"""

_BY_HAND = """%%sky --gather figures
with Measured() as measured:
    gathered = state_dict.get_model_state_dict(model, options=whole)
    if dist.get_rank() == 0:
        torch.save(gathered, f"{folder}/whole.pt")
    del gathered
figures = measured.figures
"""

_SAVE = """%%sky --gather figures
with Measured() as measured:
    sky.save(f"{folder}/run", model=model)
figures = measured.figures
"""

_SAVE_ASIDE = """%%sky --gather figures
with Measured() as measured:
    saving = sky.save(f"{folder}/run", wait=False, model=model)
figures = measured.figures
saving.wait()
"""

_LOAD = """%%sky --gather figures
with Measured() as measured:
    sky.load(f"{folder}/run", model=model)
figures = measured.figures
"""

# What comes after the cell's code is measured from there.
_OUT = """%%sky --out model
measured = Measured().__enter__()
"""
_GROWN = """%%sky --gather figures
figures = (0.0, measured.grown())
"""


def models(peers: bool) -> list[Row]:
    """Save, load and bring back a model of 268 MB on four ranks."""
    folder = tempfile.mkdtemp()
    cells = {"by hand": _BY_HAND, "save": _SAVE, "aside": _SAVE_ASIDE, "load": _LOAD}
    figures: dict[str, list[Any]] = {name: [] for name in (*cells, "out")}
    received: dict[str, int] = {}
    try:
        with SkyNotebook(_THREADS) as notebook:
            notebook.run(f"{_COUNT}\nfolder = {folder!r}")
            notebook.run(_MODEL)
            for _ in range(_ROUNDS):
                for name, cell in cells.items():
                    before = notebook.value("_received")
                    notebook.run(cell)
                    received[name] = notebook.value("_received") - before
                    figures[name].append(notebook.value("figures"))
            for _ in range(_ROUNDS):
                before = notebook.value("_received")
                ran = notebook.run(_OUT)
                received["out"] = notebook.value("_received") - before
                notebook.run(_GROWN)
                grown = [each[1] for each in notebook.value("figures")]
                figures["out"].append([(ran.ended - ran.started, each) for each in grown])
    finally:
        shutil.rmtree(folder)
    hand = _seconds(figures["by hand"])
    what = f"sharded model of {_MEGABYTES:.0f} MB, 4 ranks"
    return [
        Row(
            f"{what}: sky.save",
            statistics.median(_seconds(figures["save"])),
            "s",
            Target(1.2, ratio=True),
            Base("gathered, torch.save on one rank", statistics.median(hand)),
            note=f"{spread(_seconds(figures['save']))}, by hand {spread(hand)}; "
            f"{received['save']} bytes through the kernel",
        ),
        Row(
            "… growth of the largest rank meanwhile",
            _grown(figures["save"]),
            "MB",
            Target(2 * _LARGEST),
            Base("by hand", _grown(figures["by hand"])),
        ),
        Row(
            "… sky.save(wait=False), until ranks go on",
            statistics.median(_seconds(figures["aside"])),
            "s",
            note=f"{spread(_seconds(figures['aside']))}; a rank grows by "
            f"{_grown(figures['aside']):.0f} MB, the copy of its part",
        ),
        Row("… sky.load", statistics.median(_seconds(figures["load"])), "s"),
        Row(
            "… --out model",
            statistics.median(_seconds(figures["out"])),
            "s",
            note=f"{spread(_seconds(figures['out']))}; "
            f"{received['out'] / 1e6:.0f} MB through the kernel",
        ),
        Row(
            "… growth of the largest rank meanwhile",
            _grown(figures["out"]),
            "MB",
            Target(4 * _LARGEST),
            note=f"the head by {max(each[0][1] for each in figures['out']):.0f} MB, beside the "
            f"{_MEGABYTES:.0f} MB in the node's shared memory",
        ),
    ]


def _seconds(rounds: list[Any]) -> list[float]:
    return [max(seconds for seconds, _ in ranks) for ranks in rounds]


def _grown(rounds: list[Any]) -> float:
    """Return by how much any rank grew, in the median of the rounds."""
    return float(statistics.median(max(grown for _, grown in ranks) for ranks in rounds))
