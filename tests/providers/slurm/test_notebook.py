"""Slurm as a user has it: from a cell into the queue, to ranks that meet, and out again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT
from tests.providers.slurm.test_provider import queue, without_owner
from tests.waiting import until


@pytest.fixture
def notebook(slurm: Path, tmp_path: Path) -> Iterator[LiveNotebook]:
    notebook = LiveNotebook(tmp_path / "queue.ipynb", PYTHONPATH=str(ROOT))
    try:
        notebook.succeed("%load_ext jupyter_sky")
        yield notebook
    finally:
        notebook.close()


def test_a_cell_goes_through_the_queue_and_its_ranks_meet(notebook: LiveNotebook) -> None:
    cell = notebook.succeed(
        "%%sky --provider slurm --nodes 2 --time 10 --out total\n"
        "import torch, torch.distributed as dist\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "print('met in', __import__('os').environ['SLURM_JOB_NAME'])"
    )
    assert cell.stdout.startswith("met in sky-queue")
    assert notebook.succeed("print(total.item())").stdout == "2.0\n"
    head, shown, *_ = notebook.succeed("%sky status").stdout.splitlines()
    assert "slurm" in shown
    # The nodes are there for seconds.
    assert shown[head.index("cost") :].startswith("< 0.01 node hours")
    # A kernel that starts again finds the job again.
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    assert "2.0" in notebook.succeed("%%sky\nprint(total.item())").stdout
    refused = notebook.run("%%sky --provider slurm --partition other --nodes 2\npass")
    assert "--partition" in refused.sentence
    said = notebook.succeed("%sky offers --provider slurm --gpu A100").stdout
    assert "0 of 2 nodes idle" in said and "--provider slurm --partition main`" in said
    assert "main: 2 × A100" in notebook.run("%sky doctor --provider slurm").stdout
    notebook.succeed("%sky down")
    until(lambda: not queue())
    assert not without_owner()
    costs = notebook.succeed("%sky costs").stdout
    assert "  Slurm  " in costs and "< 0.01 node hours" in costs
    assert "$" not in costs
    refused = notebook.run("%%sky --provider slurm --time 100-0\npass")
    assert "its partition allows less time: type a shorter `--time`" in refused.sentence
    assert not queue()
