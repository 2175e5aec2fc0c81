"""A DataLoader over data of a bucket, beside the same files on a local disk."""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.measure import Base, Row, Target, alternate, spread
from tests.benchmarks.notebook import SkyNotebook
from tests.lab.buckets import serving

_FILES = 600
_SIZE = 100_000  # bytes of each, as of a small picture
_ROUNDS = 5

_SET_UP = """%%sky
import os, time, numpy, torch
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(each.path for each in os.scandir(folder) if each.name[0] != ".")
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, number):
        return torch.from_numpy(numpy.fromfile(self.paths[number], dtype=numpy.uint8)).sum()

def epoch(folder):
    began = time.perf_counter()
    total = sum(int(batch.sum()) for batch in DataLoader(Pictures(folder), 32, num_workers=1))
    return time.perf_counter() - began, total
"""


def volumes(peers: bool) -> list[Row]:
    """Epochs over files that were read once before, and the first one."""
    with tempfile.TemporaryDirectory() as name, serving() as bucket:
        local, data = Path(name, "local"), Path(name, "data")
        local.mkdir()
        for number in range(_FILES):
            content = os.urandom(_SIZE)
            (local / f"{number}").write_bytes(content)
            bucket.put({f"pictures/{number}": content})
        with SkyNotebook() as notebook:
            notebook.run(f"%sky up --nodes 1 --volume s3://photos/pictures:{data}:ro")
            notebook.run(_SET_UP)
            first = _epoch(notebook, data)
            cached, there = alternate(
                lambda: _epoch(notebook, data), lambda: _epoch(notebook, local), rounds=_ROUNDS
            )
        reads = sum(bucket.reads(f"pictures/{number}") for number in range(_FILES))
    assert reads == _FILES, f"{reads} reads of {_FILES} files"
    note = f"{_FILES} files of {_SIZE // 1000} kB, each asked for once; {spread(cached)}"
    return [
        Row(
            "an epoch of a DataLoader over a bucket, once cached",
            statistics.median(cached),
            "s",
            Target(1.2, ratio=True),
            Base("a local disk", statistics.median(there)),
            note=f"{note}; local: {spread(there)}",
        ),
        Row("the first epoch, from an S3 server of this machine", first, "s"),
    ]


def _epoch(notebook: SkyNotebook, folder: Path) -> float:
    cell = notebook.run(f"%%sky --out took\ntook, total = epoch({str(folder)!r})")
    assert cell.text == "", cell.text
    return float(notebook.run("took").value)
