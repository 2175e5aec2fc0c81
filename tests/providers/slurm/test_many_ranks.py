"""Four nodes of a real Slurm with four GPUs each: from the queue to one group of sixteen ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT
from tests.providers.slurm.controller import real_slurm
from tests.providers.slurm.test_provider import queue, without_owner
from tests.waiting import until

CELL = """\
%%sky --provider slurm --nodes 4 --gpu a100:4 --out total --gather place
import os
import torch, torch.distributed as dist

total = torch.ones(1)
dist.all_reduce(total)
total = int(total)
names = ("SLURMD_NODENAME", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "SKYPILOT_NUM_GPUS_PER_NODE")
place = tuple(os.environ[name] for name in names)
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[LiveNotebook]:
    with real_slurm(nodes=4, gpus=4):
        notebook = LiveNotebook(tmp_path / "many.ipynb", PYTHONPATH=str(ROOT))
        try:
            notebook.succeed("%load_ext jupyter_sky")
            yield notebook
        finally:
            notebook.close()


def test_each_gpu_of_four_nodes_has_a_rank(notebook: LiveNotebook) -> None:
    notebook.succeed(CELL)
    assert notebook.succeed("print(total)").stdout == "16\n"
    places = [(f"n{1 + rank // 4}", "0", str(rank % 4), "4") for rank in range(16)]
    shown = notebook.succeed("for each in place: print(each)").stdout
    assert shown.splitlines() == [str(each) for each in places]
    assert queue().endswith("RUNNING None")
    assert "nothing is left running" in notebook.succeed("%sky down").stdout
    until(lambda: not queue())
    until(lambda: not without_owner())
