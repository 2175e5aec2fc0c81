"""``%sky torchrun``: scripts of the kinds that PyTorch's examples are, on two nodes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import ClassVar

import hypothesis
import psutil
import pytest

from jupyter_sky.errors import ScriptFailed, SkyError, UsageError
from jupyter_sky.notebook.options.definitions import CellOptions
from tests.notebook.conftest import Notebook
from tests.waiting import until

# Trains with DDP, keeps a snapshot, and fails once on one rank: torchrun starts all again.
DDP = """
import argparse, os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import jupyter_sky as sky, model

parser = argparse.ArgumentParser()
parser.add_argument("--nnodes", help="an option of the script's own")
parser.add_argument("epochs", type=int)
epochs = parser.parse_args().epochs
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
net = DistributedDataParallel(model.make())
first = 0
if os.path.exists("snapshot.pt"):
    first = torch.load("snapshot.pt")
    print(f"[{rank}] resuming from epoch {first}")
for epoch in range(first, epochs):
    net(torch.full((2, 4), float(rank))).sum().backward()
    total = torch.ones(1)
    dist.all_reduce(total)
    sky.log(step=epoch, loss=10 * rank + epoch)
    print(f"[{rank}] of {world}, local {os.environ['LOCAL_RANK']}, epoch {epoch}: {total.item()}")
    if rank == 0:
        torch.save(epoch + 1, "snapshot.pt")
    dist.barrier()
    if epoch == 0 and rank == 1:
        sys.exit(5)
dist.destroy_process_group()
"""


# Says where it is, and then waits, or does what it is told.
WAITS = """
import os, sys, time
sys.stdout.write(f"pid {os.getpid()}\\n")  # at once: under torchrun nothing is buffered
if sys.argv[1:]:
    if os.environ["RANK"] == "1":
        print("the last words of rank 1", file=sys.stderr)
        sys.exit(int(sys.argv[1]))
time.sleep(1000)
"""


# The second node's torchrun is killed; the process of the first notices, as in a collective.
SHRINKS = """
import os, signal, sys, time
world, node = os.environ["WORLD_SIZE"], os.environ["SKYPILOT_NODE_RANK"]
sys.stdout.write(f"in a world of {world}\\n")
if world == "2" and node == "1":
    open("lost", "w").close()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)
while not os.path.exists("lost"):
    time.sleep(0.05)
sys.exit(world == "2")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "model.py").write_text("import torch\ndef make(): return torch.nn.Linear(4, 1)")
    (folder / "train.py").write_text(DDP)
    (folder / "waits.py").write_text(WAITS)
    (folder / "shrinks.py").write_text(SHRINKS)
    monkeypatch.chdir(folder)
    return folder


def pids(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", output)]


def all_gone(found: list[int]) -> bool:
    return all(map(is_gone, found))


def is_gone(pid: int) -> bool:
    """Whether a process has ended, whether or not its parent takes note of it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_ddp_with_a_restart(notebook: Notebook, project: Path) -> None:
    # One restart more than the script needs: now and then, a process of torch's aborts at its end
    # ("terminate called without an active exception"), when all is done.
    out = notebook.run("%sky torchrun --nodes 2 --max_restarts 2 train.py --nnodes 7 2")
    for rank in (0, 1):
        assert f"[{rank}] of 2, local 0, epoch 0: 2.0" in out
        assert f"[{rank}] resuming from epoch 1" in out
        assert f"[{rank}] of 2, local 0, epoch 1: 2.0" in out
    # What the processes have logged are curves, by torchrun's ranks.
    notebook.run("table = %sky metrics")
    table = notebook.namespace["table"]
    assert sorted(zip(table["rank"], table["step"], table["loss"], strict=True)) == [
        (0, 0, 0), (0, 1, 1), (1, 0, 10), (1, 1, 11)
    ]  # fmt: skip


def test_how_it_fails_and_is_stopped(notebook: Notebook, project: Path) -> None:
    notebook.run("%sky up --nodes 2")
    with pytest.raises(UsageError, match="--nnodes is 9, .* has 2 nodes: .*`%sky scale 9` first"):
        notebook.run("%sky torchrun --nnodes 9 waits.py")
    # A process that fails ends the others, and its last lines are the error.
    with pytest.raises(ScriptFailed, match="exit status 1") as failed:
        notebook.run("%sky torchrun --stdout none waits.py 3")
    text = "\n".join(failed.value._render_traceback_())
    assert "the last words of rank 1" in text
    assert "exitcode  : 3" in text
    # Stop ends all of it: torchrun's processes are in sessions of their own.
    notebook.run("%sky torchrun --background waits.py")
    run = notebook.namespace["_"]
    until(lambda: len(pids(run.output)) == 2, within=200)
    run.cancel()
    with pytest.raises(KeyboardInterrupt):
        run.result(200)
    until(lambda: all_gone(pids(run.output)))
    # Where nodes may be fewer, those that are left go on; the one that is lost is said.
    conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"
    notebook.run(
        "%sky torchrun --background --stdout head --nnodes 1:2 --max-restarts 3 "
        f"--rdzv-conf {conf} shrinks.py"
    )
    run = notebook.namespace["_"]
    with pytest.raises(ScriptFailed, match="the script was killed by SIGKILL") as failed:
        run.result(240)
    assert failed.value.rank == 1
    assert "in a world of 1" in run.output


def test_a_static_rendezvous_numbers_nodes_as_the_cluster_does(
    notebook: Notebook, project: Path
) -> None:
    (project / "package").mkdir()  # a folder can be a script, as for Python
    program = (
        "import os, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "print(f'{dist.get_rank()} is node ' + os.environ['SKYPILOT_NODE_RANK'], flush=True)\n"
        "dist.barrier()\ndist.destroy_process_group()\n"
    )
    (project / "package" / "__main__.py").write_text(program)
    (project / "-dashes.py").write_text(program)
    for script in ("package", "./-dashes.py"):
        out = notebook.run(f"%sky torchrun --nodes 2 --rdzv-backend static {script}")
        assert sorted(out.splitlines()) == ["0 │ 0 is node 0", "1 │ 1 is node 1"]


@pytest.mark.parametrize("words", ["unlike.py", "package", "-m package"])
def test_environments_of_hosts_have_what_the_script_imports(
    notebook: Notebook, project: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by modules beside it, wherever the line is typed."""
    monkeypatch.chdir(project.parent)
    (project / "package").mkdir()
    (project / "package" / "__init__.py").touch()
    for file in (project / "unlike.py", project / "package" / "__main__.py"):
        file.write_text("import nearby\n")
    for file in (project / "nearby.py", project / "package" / "nearby.py"):
        file.write_text("def train():\n    import hypothesis.strategies\n")
    with pytest.raises(SkyError, match="nowhere.invalid"):
        notebook.run(f"%sky torchrun --hosts nowhere.invalid --workdir project {words}")
    session = notebook.shell.find_cell_magic("sky").__self__._session
    _, [place] = session.places(CellOptions(hosts=("nowhere.invalid",)))
    assert f"hypothesis=={hypothesis.__version__}" in place.spec.image.pins


def test_no_modules_are_looked_for_where_nodes_have_the_notebooks_environment(
    notebook: Notebook, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may read the files of a large project, at each line."""

    class Finder:
        asked: ClassVar[set[str]] = set()

        @classmethod
        def find_spec(cls, name: str, *place: object) -> None:
            cls.asked.add(name)

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    (project / "uses.py").write_text("import nearby\n\nprint('nearby', nearby.HERE)\n")
    (project / "nearby.py").write_text("HERE = True\n")
    assert "nearby True" in notebook.run("%sky torchrun --nodes 1 --plugin none uses.py")
    assert "nearby" not in Finder.asked


def test_a_script_is_found_in_a_folder_however_that_is_named(
    notebook: Notebook, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "here.py").write_text("print('run as', __file__)\n")
    (project / "below").mkdir()
    (project.parent / "link").symlink_to(project)
    monkeypatch.chdir(project / "below")
    for words in (
        "--workdir .. here.py",
        f"--workdir {project} {project.parent}/link/here.py",
        f"--workdir {project.parent}/link {project}/here.py",
    ):
        out = notebook.run(f"%sky torchrun --nodes 1 --plugin none {words}")
        assert out.startswith("run as ") and out.endswith("here.py\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "takes the name of a file, as in `%sky torchrun train.py`; none is given"),
        ("trian.py", r"there is no file trian.py in .*: did you mean train.py\?"),
        ("package/maim.py", r"no file package/maim.py in .*: did you mean package/main.py\?"),
        (
            "../above.py",
            "../above.py is not in .*, which is what nodes get: add `--workdir FOLDER`",
        ),
        ("nothing.xyz", "there is no file nothing.xyz in .*: name one that is there"),
        (
            "empty",
            "empty is a folder without a `__main__.py`: name a script in it, or a module",
        ),
        ("--max-restart 1 train.py", "did you mean `--max-restarts`?"),
        ("--max-restarts few train.py", 'takes a whole number, .*; "few" is not one'),
        ("--node-rank 1 train.py", "--node-rank differs from node to node, and .*: leave it out"),
        ("--workdir nowhere -m train", "there is no folder .*nowhere: name one that is there"),
    ],
)
def test_what_cannot_be_is_one_line(
    notebook: Notebook, project: Path, words: str, sentence: str
) -> None:
    (project.parent / "above.py").touch()
    (project / "empty").mkdir()
    (project / "package").mkdir()
    (project / "package" / "main.py").touch()
    with pytest.raises(UsageError, match=sentence):
        notebook.run(f"%sky torchrun {words}")
