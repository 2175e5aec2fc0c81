"""Slurm as a user has it: from a cell into the queue, to ranks that meet, and out again."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import registry
from tests.lab import wheels
from tests.notebook.kernels import Cell, LiveNotebook
from tests.paths import ROOT
from tests.providers.slurm.test_provider import queue, submit_other, without_owner
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
        "total = total.item()\n"
        "print('met in', __import__('os').environ['SLURM_JOB_NAME'])"
    )
    assert cell.stdout.startswith("met in sky-queue")
    assert notebook.succeed("print(total)").stdout == "2.0\n"
    head, shown, *_ = notebook.succeed("%sky status").stdout.splitlines()
    assert "slurm" in shown
    # The nodes are there for seconds, or for a minute where much else runs.
    assert re.match(r"(< )?0\.\d+ node hours", shown[head.index("cost") :])
    # A kernel that starts again finds the job again.
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    assert "2.0" in notebook.succeed("%%sky\nprint(total)").stdout
    refused = notebook.run("%%sky --provider slurm --partition other --nodes 2\npass")
    assert "--partition" in refused.sentence
    said = notebook.succeed("%sky offers --provider slurm --gpu A100").stdout
    assert "0 of 2 nodes idle" in said and "--provider slurm --partition main`" in said
    assert "main: 2 × A100" in notebook.run("%sky doctor --provider slurm").stdout
    notebook.succeed("%sky down")
    until(lambda: not queue())
    assert not without_owner()
    costs = notebook.succeed("%sky costs").stdout
    assert "  Slurm  " in costs and re.search(r"(< )?0\.\d+ node hours", costs)
    assert "$" not in costs
    refused = notebook.run("%%sky --provider slurm --time 100-0\npass")
    # Slurm gives one reason or the other, as to which part of it looks at the job first.
    assert re.search(r"PartitionTimeLimit|PartitionConfig", refused.sentence)
    assert "allows less time" in refused.sentence
    assert not queue()


CLOSED = """\
import os
from pathlib import Path
there = Path(os.environ['SLURM_CONF'])
closed = there.with_name('closed.conf')
# Slurm tries for as long as that, at each question.
text = there.read_text().replace('SlurmctldPort=', 'MessageTimeout=2\\nSlurmctldPort=1#')
closed.write_text(text)
os.environ['SLURM_CONF'] = str(closed)"""


def test_a_cluster_of_a_slurm_that_is_out_of_reach_can_be_forgotten(
    notebook: LiveNotebook,
) -> None:
    notebook.succeed("%sky up --provider slurm --nodes 1 --plugin none")
    [row] = registry.rows()
    [job] = {machine["id"] for machine in row.machines}
    notebook.restart()
    notebook.succeed(f"%load_ext jupyter_sky\n{CLOSED}")
    refused = notebook.run("%sky down").sentence
    assert "Unable to contact slurm controller" in refused
    assert f"or forget the cluster with `%sky down --discard {row.name}`" in refused
    said = notebook.succeed("%sky down --discard").stdout
    assert f"forgotten; job {job} may still be there in Slurm: `scancel {job}` ends it" in said
    assert not registry.rows()
    assert "sky-queue" in queue()
    # When it answers again, what has no entry any more is removed.
    notebook.succeed("os.environ['SLURM_CONF'] = str(there)")
    assert f"removed {row.name}: job {job} (running) in Slurm" in notebook.succeed("%sky gc").stdout
    assert not queue()


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("", "; with `--replace` it goes on with another node while others are left."),
        ("--replace", "to start a new one (`%sky restart` does so too)."),
    ],
)
def test_a_job_that_has_ended_is_not_said_to_go_on(
    notebook: LiveNotebook, option: str, advice: str
) -> None:
    line = f"%%sky --provider slurm --nodes 2 --plugin none {option}"
    cell = notebook.start(f"{line}\nimport time\nprint('begun')\ntime.sleep(600)")
    notebook.until(cell, lambda cell: "begun" in cell.stdout)
    [row] = registry.rows()
    subprocess.run(["scancel", row.machines[0]["id"]], check=True)
    said = notebook.finish(cell).sentence
    assert "has ended (CANCELLED)" in said and said.endswith(advice)
    assert "no connection to" not in str(cell.shown)


BUSY = """\
#!{python}
import os, pathlib, subprocess, sys, time
folder, command = pathlib.Path({folder!r}), [{sbatch!r}, *sys.argv[1:]]
if "--parsable" not in command:
    os.execv(command[0], command)
script = pathlib.Path(command.pop()).read_bytes()
# What a busy controller was told, it takes also where the command has ended before its answer.
if not (pid := os.fork()):
    os.setsid()
    os.closerange(1, 3)
    (folder / "told").touch()
    while not (folder / "answers").exists():
        time.sleep(0.3)
    with (folder / "said").open("wb") as said:
        subprocess.run(command, input=script, stdout=said, stderr=said)
    os._exit(0)
os.waitpid(pid, 0)
print((folder / "said").read_text())
"""


def test_stop_leaves_no_job_that_slurm_has_yet_to_take(
    notebook: LiveNotebook, tmp_path: Path
) -> None:
    busy = tmp_path / "bin" / "sbatch"
    busy.parent.mkdir()
    place = {"python": sys.executable, "sbatch": shutil.which("sbatch"), "folder": str(tmp_path)}
    busy.write_text(BUSY.format(**place))
    busy.chmod(0o755)
    notebook.succeed(f"import os\nos.environ['PATH'] = '{busy.parent}:' + os.environ['PATH']")
    cell = notebook.start("%%sky --provider slurm --nodes 1 --plugin none\npass")
    until((tmp_path / "told").exists)
    notebook.interrupt()
    (tmp_path / "answers").touch()
    assert "was stopped; nothing is left running" in notebook.finish(cell).sentence
    until(lambda: (tmp_path / "said").exists() and (tmp_path / "said").read_text())
    assert not queue()
    assert not registry.rows()


TASK = """\
name: two-parts
num_nodes: 2
setup: echo set up on $SLURMD_NODENAME > ready-$SLURMD_NODENAME
run: cat ready-n1 ready-n2
"""


def test_a_task_waits_in_the_queue_with_its_setup_and_the_notebook_does_not(
    notebook: LiveNotebook, tmp_path: Path
) -> None:
    (tmp_path / "task.yaml").write_text(TASK)
    launch = "%sky launch task.yaml --provider slurm --plugin none --workdir . --background"
    other = submit_other("--nodes=2", "--exclusive")
    try:
        cell = notebook.succeed(f"%cd {tmp_path}\n{launch}")
        notebook.watch(cell, lambda cell: "is pending" in str(cell.shown))
        meanwhile(notebook, "free = True", cell)
    finally:
        subprocess.run(["scancel", other], check=True)
    notebook.watch(cell, lambda cell: "set up on n2" in str(cell.shown))
    assert notebook.value("Out[2].result()") == {}
    lines = notebook.value("Out[2].output").splitlines()
    for rank in range(2):  # whose lines may come between those of the other
        said = [line for line in lines if line.startswith(f"{rank} │ ")]
        assert said == [f"{rank} │ set up on n1", f"{rank} │ set up on n2"]
    notebook.succeed("%sky down")
    until(lambda: not queue())


IN_THE_QUEUE = """\
%%sky --provider slurm --nodes 2 --plugin none --background --out total
import jupyter_sky as sky
total = sky.instance_info().world_size
print(word)
"""


def pending() -> str:
    """Return the numbers of the jobs that wait."""
    command = ["squeue", "--noheader", "--states=PENDING", "--format=%i"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def meanwhile(notebook: LiveNotebook, code: str, *shown: Cell) -> None:
    """Run a cell, and read what others show that have ended."""
    assert notebook.finish(notebook.start(code), *shown).error is None


def test_a_cell_in_the_background_waits_in_the_queue_and_the_notebook_does_not(
    notebook: LiveNotebook,
) -> None:
    other = submit_other("--nodes=2", "--exclusive")
    try:
        notebook.succeed("word = 'as it was'")
        cell = notebook.succeed(IN_THE_QUEUE)
        notebook.watch(cell, lambda cell: "is pending: it waits for nodes" in cell.shown[0])
        meanwhile(notebook, "word = 'as it is now'", cell)
        said = notebook.finish(notebook.start("%sky status"), cell).stdout
        assert re.search(r"queue-\w+ +slurm .* starting .*job \d+ is pending: it waits", said)
        [name] = re.findall(r"queue-\w+", said)
        for command in ("logs", "interrupt", "push word", f"attach {name}", f"logs -c {name}"):
            refused = notebook.finish(notebook.start(f"%sky {command}"), cell).sentence
            assert re.search(rf"{name} is not up yet \(job .* pending.*\): wait for it", refused)
            assert f"`%sky down {name}` stops its start" in refused
        # Another cell for the same cluster waits with it; Stop lets go of that cell alone.
        waiting = notebook.start("%%sky\npass")
        notebook.until(waiting, lambda cell: "is pending" in str(cell.shown))
        notebook.interrupt()
        assert "KeyboardInterrupt" in notebook.finish(waiting, cell).traceback
        # A cancelled run leaves the queue alone if others wait for the same cluster.
        second = notebook.succeed("%%sky --background\npass")
        assert "is pending" in second.shown[0]
        meanwhile(notebook, "Out[12].cancel()", second)
        notebook.watch(second, lambda cell: "was stopped before it began>" in cell.shown[0])
        assert "stopped before it began" in notebook.run("Out[12].result()").sentence
        awaiting = notebook.run("import asyncio\nawait asyncio.gather(Out[12], asyncio.sleep(0))")
        assert "RunStopped: the run was stopped before it began" in awaiting.traceback
        assert "sky-queue" in queue()
        # The last one takes the cluster along.
        meanwhile(notebook, "Out[3].cancel()", cell)
        notebook.watch(cell, lambda cell: "was stopped; nothing is left running" in cell.shown[0])
        assert "sky-queue" not in queue()
        # So does a cluster that is ended.
        cell = notebook.succeed(IN_THE_QUEUE)
        notebook.watch(cell, lambda cell: "is pending" in cell.shown[0])
        assert "nothing is left running" in notebook.succeed("%sky down").stdout
        assert "sky-queue" not in queue()
        cell = notebook.succeed(IN_THE_QUEUE)
        notebook.watch(cell, lambda cell: "is pending" in cell.shown[0])
        # A kernel that starts again finds its place in the queue.
        place = pending()
        until(lambda: registry.rows()[-1].progress.startswith(f"job {place.strip()} is pending"))
        notebook.restart()
        notebook.succeed("%load_ext jupyter_sky")
        notebook.succeed("word = 'as it is now'")
        cell = notebook.succeed(IN_THE_QUEUE)
        notebook.watch(cell, lambda cell: "is pending" in cell.shown[0])
        assert pending() == place
    finally:
        subprocess.run(["scancel", other], check=True)
    # It begins by itself, with what was there when it was typed.
    notebook.watch(cell, lambda cell: cell.shown[1].splitlines()[:1] == ["as it is now"])
    notebook.watch(cell, lambda cell: cell.snapshot["run"]["state"] == "ok")
    assert notebook.value("(Out[3].result()['total'], total)") == (2, 2)
    notebook.succeed("%sky down")
    until(lambda: not queue())


def test_a_job_that_is_cancelled_in_the_queue_ends_further_attempts(
    notebook: LiveNotebook,
) -> None:
    line = "%%sky --provider slurm --nodes 2 --plugin none --retry 3"
    cell = notebook.start(f"{line}\nimport time\nprint('begun')\ntime.sleep(600)")
    notebook.until(cell, lambda cell: "begun" in cell.stdout)
    other = submit_other("--nodes=2", "--exclusive")
    try:
        [row] = registry.rows()
        subprocess.run(["scancel", row.machines[0]["id"]], check=True)
        notebook.until(cell, lambda cell: "is pending" in str(cell.shown))
        [job] = [each for each in pending().split() if each != other]
        subprocess.run(["scancel", job], check=True)
        sentence = notebook.finish(cell).sentence
        assert f"job {job} was cancelled while it waited" in sentence
        assert "goes on without" not in cell.stdout
        assert "sky-queue" not in queue()
    finally:
        subprocess.run(["scancel", other], check=True)


GREET = """\
%%sky{options} --plugin none --pip {package} --background
import {package}
print({package}.WORD)
"""


VALUES = """\
import os, signal, threading, time, weakref

class Large:
    pass

class Slow:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGINT)  # which is what Stop does
        time.sleep(60)

large, lock, slow = Large(), threading.Lock(), Slow()
there = weakref.ref(large)
"""


def test_cells_that_wait_in_the_queue_get_what_they_ask_of_the_cluster(
    notebook: LiveNotebook, tmp_path: Path
) -> None:
    shelf = tmp_path / "shelf"
    wheels.write(shelf, "greeting", "1.0", greeting="WORD = 'good morning'")
    wheels.write(shelf, "farewell", "1.0", farewell="WORD = 'good night'")
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text("no-index = true\n")  # there is no variable for it
    # Jobs get the environment of the notebook.
    notebook.succeed(f"%env XDG_CONFIG_HOME={tmp_path}\n%env UV_FIND_LINKS={shelf}")
    there = " --provider slurm --nodes 2"
    (tmp_path / "task.yaml").write_text("name: one-node\nrun: echo well\n")
    other = submit_other("--nodes=2", "--exclusive")
    try:
        cell = notebook.succeed(GREET.format(options=there, package="greeting"))
        notebook.watch(cell, lambda cell: "is pending" in cell.shown[0])
        notebook.succeed(GREET.format(options="", package="farewell"))
        notebook.succeed("%%sky --nodes 1 --background\npass")
        notebook.succeed(f"%sky launch {tmp_path}/task.yaml --background")
        notebook.succeed(VALUES)
        for needed in ("large", "lock", "slow"):
            notebook.succeed(f"%%sky --background --in {needed}\npass")
    finally:
        subprocess.run(["scancel", other], check=True)
    for run, word in ((3, "good morning"), (4, "good night")):
        assert notebook.value(f"(Out[{run}].result(), Out[{run}].output)") == ({}, f"{word}\n")
    # One that describes another cluster is refused, as if the cluster had been there.
    refused = notebook.run("Out[5].result()").sentence
    assert "is running with --nodes 2, and the cell asks for 1" in refused
    # Whether a run began or not, its handle does not keep the notebook's values alive.
    assert notebook.value("Out[8].result()") == {}
    notebook.succeed("import asyncio\nwhile not Out[10].done: await asyncio.sleep(0.01)")
    assert "lock cannot be sent" in notebook.value("repr(Out[9])")
    assert "pass: the run was stopped before it began>" in notebook.value("repr(Out[10])")
    assert "the run was stopped before it began" in notebook.run("Out[10].result()").sentence
    notebook.succeed("del large\nimport gc\ngc.collect()")
    assert notebook.value("there() is None")
    # A task takes as many of its nodes as it needs, also as if it had been there.
    assert notebook.value("(Out[6].result(), Out[6].output)") == ({}, "well\n")
    notebook.succeed("%sky down")
    until(lambda: not queue())
