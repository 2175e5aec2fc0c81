"""Work on nodes of a real Slurm: scripts under torchrun, cells that run again, many ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT
from tests.providers.slurm.controller import real_slurm
from tests.providers.slurm.test_provider import queue, submit_other, without_owner
from tests.waiting import until

MEET = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", int(total), "on", os.environ["SLURMD_NODENAME"])
dist.destroy_process_group()
"""

# It counts on the head, which the first time goes on until its job is taken away.
TRAIN = """\
%%sky --provider slurm --partition low --nodes 2 --retry 1 --out seen
import os, time
import torch
import jupyter_sky as sky

state = torch.zeros(1)
step, seen = 0, []
if checkpoint := sky.restored():
    found = sky.load(checkpoint)
    step, state = found["step"], found["state"]
    seen = [step, state.item(), os.environ["SLURM_JOB_ID"]]
while step < 60 if checkpoint else True:
    step += 1
    state += 1
    if step == 50:
        sky.save("run", state=state, step=step)
    if step > 50 and not checkpoint:
        time.sleep(0.05)
    # Of the checkpoint the notebook hears otherwise than of what is printed: not always earlier.
    if step == 60 and not checkpoint:
        print("saved in job", os.environ["SLURM_JOB_ID"], flush=True)
"""


MANY = """\
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
def notebook(slurm: Path, tmp_path: Path) -> Iterator[LiveNotebook]:
    notebook = LiveNotebook(tmp_path / "work.ipynb", PYTHONPATH=str(ROOT))
    try:
        notebook.succeed(f"%load_ext jupyter_sky\n%cd {tmp_path}")
        yield notebook
    finally:
        notebook.close()


def test_a_script_runs_under_torchrun_and_a_cell_is_queued_again(
    notebook: LiveNotebook, tmp_path: Path
) -> None:
    (tmp_path / "meet.py").write_text(MEET)
    training = notebook.start(TRAIN)
    notebook.until(training, lambda cell: "saved in job" in cell.stdout)
    [first] = re.findall(r"saved in job (\d+)", training.stdout)
    # It has to wait when it is there again: others were quicker.
    other = submit_other("--nodes=2", "--exclusive", "--partition=main")
    try:
        subprocess.run(["scancel", first], check=True)
        notebook.until(training, lambda cell: "is pending" in str(cell.shown))
    finally:
        subprocess.run(["scancel", other], check=True)
    ended = notebook.finish(training)
    assert ended.error is None, ended.traceback
    step, state, second = notebook.value("seen")
    assert (step, state) == (50, 50.0)
    assert int(second) > int(other) > int(first)
    # Beside the ranks, on the nodes that they have now.
    said = notebook.succeed("%sky torchrun meet.py").stdout
    # torchrun numbers nodes as it likes.
    met = re.findall(r"rank (\d) of 2 on (n\d)", said)
    assert sorted(rank for rank, _ in met) == ["0", "1"], said
    assert sorted(node for _, node in met) == ["n1", "n2"], said
    assert "nothing is left running" in notebook.succeed("%sky down").stdout
    until(lambda: not queue())
    assert not without_owner()


LOSES = """\
%%sky --provider slurm --nodes 1 --plugin none --cluster train
import os, time
os.system("scancel " + os.environ["SLURM_JOB_ID"])
time.sleep(600)
"""


def test_the_cost_of_a_program_has_that_of_a_cluster_that_another_has_replaced(
    slurm: Path, tmp_path: Path
) -> None:
    cells = [
        nbformat.v4.new_code_cell(LOSES, metadata={"tags": ["raises-exception"]}),
        nbformat.v4.new_code_cell(
            "%%sky --provider local --nodes 1 --plugin none --cluster train\nprint('here')"
        ),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "program.ipynb")
    command = [sys.executable, "-m", "jupyter_sky", "run", "program.ipynb"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "here" in done.stdout, done.stderr
    finished = done.stderr.splitlines()[-1]
    assert re.search(r"finished after 2 cells and .*, (< )?0\.\d+ node hours$", finished)


@pytest.fixture
def larger(tmp_path: Path) -> Iterator[LiveNotebook]:
    with real_slurm(nodes=4, gpus=4):
        notebook = LiveNotebook(tmp_path / "many.ipynb", PYTHONPATH=str(ROOT))
        try:
            notebook.succeed("%load_ext jupyter_sky")
            yield notebook
        finally:
            notebook.close()


def test_each_gpu_of_four_nodes_has_a_rank(larger: LiveNotebook) -> None:
    larger.succeed(MANY)
    assert larger.succeed("print(total)").stdout == "16\n"
    places = [(f"n{1 + rank // 4}", "0", str(rank % 4), "4") for rank in range(16)]
    shown = larger.succeed("for each in place: print(each)").stdout
    assert shown.splitlines() == [str(each) for each in places]
    assert queue().endswith("RUNNING None")
    assert "nothing is left running" in larger.succeed("%sky down").stdout
    until(lambda: not queue())
    until(lambda: not without_owner())
