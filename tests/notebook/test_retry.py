"""``--retry``: a cell runs again where it lost a rank or a node, and only there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.control import recovery
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.errors import Interrupted, RankLost, TimedOut
from jupyter_sky.cluster.inventory import registry, row_updates
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.errors import NameTaken
from jupyter_sky.notebook import cluster_factory, places
from jupyter_sky.notebook.cluster_factory import ClusterPlace
from jupyter_sky.notebook.output import background_run
from jupyter_sky.notebook.panel.strip import MIME
from jupyter_sky.providers.local import Local
from tests.installed import skip_without
from tests.lab import wheels
from tests.lab.buckets import serving
from tests.node.volumes.conftest import forwarding, keeping
from tests.notebook.conftest import Notebook
from tests.notebook.kernels import Cell, LiveNotebook
from tests.waiting import PATIENCE, until

ONCE = """
import os, signal

def is_first(what):
    if os.path.exists(f"{folder}/{what}"):
        return False
    open(f"{folder}/{what}", "w").close()
    return True

def die_once(rank=1):
    import jupyter_sky as sky
    if sky.instance_info().rank == rank and is_first("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
"""

TRAINING = """
import torch, torch.distributed as dist, jupyter_sky as sky
torch.manual_seed(0)
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
step = 0
if checkpoint := sky.restored():
    step = sky.load(checkpoint, model=model, optimizer=optimizer)["step"]
print("begins at", step, flush=True)
while step < 20:
    torch.manual_seed(100 * step + rank)
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    sky.log(step=step, loss=loss)
    disturb(rank, step)
    if step % 5 == 0:
        sky.save(f"{folder}/run", model=model, optimizer=optimizer, step=step)
final = loss.item()
"""


@pytest.fixture
def pair(shared_shell: Notebook, tmp_path: Path) -> Notebook:
    """A notebook whose cells can lose a rank of two, once."""
    shared_shell.run("%reset -f")
    shared_shell.run(f"folder = {str(tmp_path)!r}\n{ONCE}")
    shared_shell.run("%sky up --nodes 2")
    return shared_shell


def test_a_training_ends_as_one_that_nothing_has_disturbed(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is killed, then a node with its agent: another node takes its place."""
    skip_without("torch")
    monkeypatch.setattr(cluster_factory, "Local", partial(Local, machines=2))
    notebook.run(f"folder = {str(tmp_path)!r}\n{ONCE}")
    notebook.run("def disturb(rank, step): pass")
    line = "%%sky --nodes 2 --plugin torch --replace --out final"
    assert notebook.run(f"{line}\n{TRAINING}").count("begins at") == 1
    undisturbed = notebook.namespace["final"]

    name = registry.rows()[0].name
    agent = registry.rows()[0].machines[1]["pid"]
    notebook.run(f"""
import time
def disturb(rank, step):
    if step == 8:
        open(f"{{folder}}/{{rank}} has logged", "w").close()
    if step == 8 and rank == 1 and is_first("rank"):
        while not os.path.exists(f"{{folder}}/0 has logged"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 12 and rank == 0 and is_first("node"):
        os.kill({agent}, signal.SIGKILL)
        # Its rank ends a moment later: on a busy machine both would reach the next checkpoint.
        time.sleep(600)
""")
    said = notebook.run(f"{line} --retry 3\n{TRAINING}")
    assert notebook.namespace["final"] == undisturbed
    begins = re.findall(r"begins at (\d+)", said)
    assert begins == ["0", "5", "10"]
    place = re.escape(f"{tmp_path}/run")
    first, second = (each for each in said.splitlines() if "Lost:" in each)
    assert re.fullmatch(
        rf"{name}: rank 1 is lost: it was killed by SIGKILL\. Lost: 3 steps and .* m?s, since the "
        rf"checkpoint {place} of step 5; attempt 2 of 4 begins",
        first,
    )
    assert re.search(
        rf"rank 1 is lost: the agent of node 1 .*{place} of step 10; .* 3 of 4", second
    )
    # The curves go on where the checkpoints were saved.
    notebook.run("metrics = %sky metrics")
    logged = notebook.namespace["metrics"]
    for rank in range(2):
        assert list(logged[logged["rank"] == rank]["step"]) == list(range(1, 21))


SAVING = """
import time, jupyter_sky as sky
rank = sky.instance_info().rank
begun = sky.load(checkpoint)["step"] if (checkpoint := sky.restored()) else 0
print("begins at", begun, flush=True)
if begun == 0:
    sky.save(f"{data}/5", step=5)
    if rank == 0:
        open(f"{folder}/bucket is lost", "w").close()
    sky.save(f"{data}/10", step=10)
    die_once()
    time.sleep(600)
elif begun == 10:
    if rank == 0:
        os.kill(agent, signal.SIGKILL)
    time.sleep(600)
"""


def test_an_attempt_goes_on_from_what_its_nodes_have_and_new_nodes_from_what_the_bucket_has(
    notebook: Notebook, tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without("torch")
    monkeypatch.setattr(cluster_factory, "Local", partial(Local, machines=2))
    is_lost = tmp_path / "bucket is lost"
    with (
        serving() as bucket,
        forwarding(bucket.address, lambda size, is_back: not is_lost.exists()) as address,
        keeping(tmp_path / "data", bucket, workplace) as keeper,
    ):
        assert keeper.mount("s3://photos/runs", address) == ""
        notebook.run("%sky up --nodes 2 --plugin torch --replace")
        agent = registry.rows()[0].machines[1]["pid"]
        notebook.run(
            f"folder, data, agent = {str(tmp_path)!r}, {str(keeper.data)!r}, {agent}\n{ONCE}"
        )
        said = notebook.run(f"%%sky --retry 3\n{SAVING}")
        is_lost.unlink()
    assert re.findall(r"begins at (\d+)", said) == ["0", "10", "5"]
    same, new = (each for each in said.splitlines() if "Lost:" in each)
    assert f"since the checkpoint {keeper.data}/10 of step 10; attempt 2 of 4 begins" in same
    assert f"since the checkpoint {keeper.data}/5 of step 5; attempt 3 of 4 begins" in new


def test_each_attempt_begins_alike(pair: Notebook) -> None:
    """On ranks that were not lost, too: what they have changed is as the notebook has it."""
    pair.run("seen = []")
    said = pair.run(
        "%%sky --retry 2 --gather seen\nseen.append(len(seen))\ndie_once()\nseen.append('end')"
    )
    assert pair.namespace["seen"] == [[0, "end"], [0, "end"]]
    assert "as no checkpoint was saved (`sky.save`); attempt 2 of 3 begins from the start" in said


def test_a_further_attempt_begins_in_the_working_folder_too(
    pair: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are sent there by a run of its own, which does not wait for the end of the attempts."""
    place = tmp_path / "work"
    place.mkdir()
    line = f"%%sky --retry 1 --workdir {place}"
    assert f"{place}\n" in pair.run(f"{line}\nimport os\ndie_once()\nprint(os.getcwd())")


def test_what_a_further_attempt_will_lack_is_said_before_the_first(pair: Notebook) -> None:
    pair.run("%%sky\nimport random as dice\nhere = there = 1")
    pair.run("here = 2")
    pair.run("%%sky --retry 1\nthere = here + dice.randint(1, 6)\nprint(there)")
    assert pair.stderr == (
        "--retry: a further attempt begins without dice, which only ranks have, from earlier "
        "cells: define them in this cell, or in the notebook\n"
    )


def test_each_attempt_in_the_background_begins_as_the_first(pair: Notebook) -> None:
    """Whatever the notebook does to its values meanwhile."""
    pair.run("seen, other = [], 1")
    code = (
        "import time\nseen.append(other)\nopen(f'{folder}/begun', 'w').close()\n"
        "while not os.path.exists(f'{folder}/changed'):\n    time.sleep(0.01)\n"
        "die_once()\nseen.append('end')"
    )
    pair.run(
        "run = get_ipython().run_cell_magic('sky', '--retry 2 --background --gather seen', "
        f"{code!r})\nimport time\nwhile not os.path.exists(f'{{folder}}/begun'):\n"
        "    time.sleep(0.01)\nseen.append('here')\nother = 2\n"
        "open(f'{folder}/changed', 'w').close()\nbrought = run.result()"
    )
    assert pair.namespace["brought"] == {"seen": [[1, "end"], [1, "end"]]}


def test_an_attempt_may_be_over_before_its_cell_is(
    pair: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = RunHandle.listen

    def listen_to_its_end(run: RunHandle, *asked: Any) -> None:
        listen(run, *asked)
        until(lambda: background_run.begun()[-1].done)

    monkeypatch.setattr(RunHandle, "listen", listen_to_its_end)
    pair.run(
        "run = get_ipython().run_cell_magic('sky', '--retry 2 --background --gather end', "
        "'die_once()\\nend = 1')\nbrought = run.result()"
    )
    assert pair.namespace["brought"] == {"end": [1, 1]}


@pytest.mark.parametrize("retries", [1, 2])
def test_a_cell_that_waits_begins_after_the_last_attempt(
    pair: Notebook, tmp_path: Path, retries: int
) -> None:
    """It does not find what an attempt has left half done, or what the next one drops."""
    pair.run(f'''
train = """
import time
while not os.path.exists(f"{{folder}}/go"): time.sleep(0.01)
die_once()
if {retries} == 1: os.kill(os.getpid(), signal.SIGKILL)
"""
run = get_ipython().run_cell_magic("sky", "--retry {retries} --background", train)
after = get_ipython().run_cell_magic("sky", "--background --gather pids", "pids = os.getpid()")
''')
    (tmp_path / "go").touch()
    pair.run("after.result(60)\nis_over = run.done")
    assert pair.namespace["is_over"]
    pair.run("%%sky --gather last\nlast = os.getpid()")
    assert pair.namespace["pids"] == pair.namespace["last"]


def test_ranks_that_work_each_for_itself_do_not_keep_the_next_attempt_waiting(
    pair: Notebook,
) -> None:
    """What they do is done anew. In `pair`, ranks have no group."""
    out = pair.run("""%%sky --retry 1
import threading, jupyter_sky as sky
is_first_attempt = is_first(f"rank {sky.instance_info().rank}")
die_once()
if is_first_attempt:
    threading.Event().wait()
print("done")
""")
    assert "rank 1 is lost" in out
    assert out.endswith("done\n")


def test_why_several_ranks_are_lost_is_said_of_one_of_them(pair: Notebook) -> None:
    out = pair.run("""%%sky --retry 1
import os, signal, jupyter_sky as sky
if is_first(f"rank {sky.instance_info().rank}"):
    os.kill(os.getpid(), signal.SIGTERM)
print("done")
""")
    assert re.search(r"ranks 0-1 are lost \(rank [01]: it was killed by SIGTERM\)\. Lost: ", out)
    assert out.endswith("done\n")


def test_an_error_of_the_cell_is_its_own(pair: Notebook, tmp_path: Path) -> None:
    code = "open(f'{folder}/begun', 'a').write('.')\nraise ValueError('mine')"
    with pytest.raises(ValueError, match="mine"):
        pair.run(f"%%sky --retry 3 --ranks 0\n{code}")
    assert (tmp_path / "begun").read_text() == "."


def test_the_last_attempt_is_the_last(pair: Notebook, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import os, signal\nprint('here', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(RankLost, match="rank 1 is lost"):
        pair.run(f"%%sky --retry 1 --ranks 1\n{code}")


def test_without_the_option_nothing_runs_again(pair: Notebook) -> None:
    with pytest.raises(RankLost):
        pair.run("%%sky\ndie_once()")


def test_stop_ends_it(pair: Notebook, tmp_path: Path) -> None:
    def stop() -> None:
        until((tmp_path / "again").exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Interrupted):
        pair.run(
            "%%sky --retry 3\nimport time\ndie_once()\nopen(f'{folder}/again', 'w').close()\n"
            "time.sleep(600)"
        )
    thread.join()
    assert pair.run("%%sky\nprint('idle')") == "idle\n"


def test_stop_between_two_attempts_ends_it(
    pair: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_ranks = RunHandle.renew_ranks

    def stopped(run: RunHandle) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        renew_ranks(run)

    monkeypatch.setattr(RunHandle, "renew_ranks", stopped)
    with pytest.raises(Interrupted, match="the cell was stopped"):
        pair.run("%%sky --retry 3\nopen(f'{folder}/begun', 'a').write('.')\ndie_once()")
    assert (tmp_path / "begun").read_text() == ".."  # one for each rank
    assert pair.run("%%sky\nprint('idle')") == "idle\n"


@pytest.mark.parametrize("is_background", [False, True])
def test_other_cells_go_on_where_a_further_attempt_cannot_begin(
    pair: Notebook, monkeypatch: pytest.MonkeyPatch, is_background: bool
) -> None:
    async def renew(controller: Controller, ranks: Sequence[int]) -> None:
        raise sky.SkyError("the ranks did not start again: no memory is left.")

    monkeypatch.setattr(recovery, "renew", renew)
    line = f"--retry 3{' --background' * is_background}"
    with pytest.raises(sky.SkyError, match="no memory is left"):
        pair.run(f"run = get_ipython().run_cell_magic('sky', '{line}', 'die_once()')\nrun.result()")
    monkeypatch.undo()
    assert pair.run("%%sky\nprint('idle')") == "idle\n"


@pytest.mark.parametrize("where", ["interrupt", "run.cancel()"])
def test_who_stops_it_between_two_attempts_in_the_background_ends_it(
    pair: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    renews = threading.Event()

    async def renew(controller: Controller, ranks: Sequence[int]) -> None:
        """Take as long as another node does."""
        renews.set()
        await controller.until(lambda: False)

    monkeypatch.setattr(recovery, "renew", renew)
    pair.run(
        "run = get_ipython().run_cell_magic('sky', '--retry 3 --background', "
        "\"open(f'{folder}/begun', 'a').write('.')\\ndie_once()\")"
    )
    assert renews.wait(PATIENCE)
    assert "attempt 2 of 4 begins" in pair.namespace["run"].output, "not only once it has"
    said = pair.run("%sky interrupt" if where == "interrupt" else where)
    assert where != "interrupt" or said.endswith(": stopping\n")
    with pytest.raises(Interrupted, match="the run was stopped"):
        pair.run("run.result(60)")
    assert (tmp_path / "begun").read_text() == ".."  # one for each rank
    monkeypatch.undo()
    assert pair.run("%%sky\nprint('idle')") == "idle\n"


def test_all_attempts_together_have_the_time(pair: Notebook) -> None:
    with pytest.raises(TimedOut):
        pair.run("%%sky --retry 3 --timeout 2\nimport time\ndie_once()\ntime.sleep(600)")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_cluster_that_is_lost_comes_back(pair: Notebook, number: int) -> None:
    """Local nodes share an agent; a machine that shuts down, as a spot one does, asks it to end."""
    [row] = registry.rows()
    said = pair.run(
        "%%sky --retry 1 --gather pid\nimport time\nif is_first('agent'):\n"
        f"    os.kill({row.machines[0]['pid']}, {number})\n    time.sleep(600)\n"
        "pid = os.getpid()"
    )
    assert re.search(rf"cluster {row.name} is lost: .*; attempt 2 of 2 begins", said)
    [new] = registry.rows()
    assert new.name == row.name and new.id != row.id
    assert len(set(pair.namespace["pid"])) == 2


def test_one_that_another_notebook_starts_again_keeps_its_limit_and_gets_the_packages(
    pair: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheels.write(tmp_path, "greeting", "1.0", greeting="WORD = 'hello'\n")
    [row] = registry.rows()
    start = places.start_at_one

    def start_elsewhere(possible: Sequence[ClusterPlace], *rest: Any) -> NoReturn:
        monkeypatch.setattr(places, "start_at_one", start)
        other = [replace(each, spec=replace(each.spec, image=sky.Image())) for each in possible]
        _, cluster = start(other, *rest)
        row_updates.record_limit(cluster.id, 7.0)
        row_updates.record_line(cluster.id, "--nodes 2 --max-cost 7")
        cluster.close()
        raise NameTaken("another notebook starts it.")

    monkeypatch.setattr(places, "start_at_one", start_elsewhere)
    said = pair.run(
        f"%%sky --retry 1 --pip greeting --wheels {tmp_path}\nimport time\nif is_first('agent'):\n"
        f"    os.kill({row.machines[0]['pid']}, {signal.SIGKILL})\n    time.sleep(600)\n"
        "import greeting\nprint(greeting.WORD)"
    )
    assert said.endswith("hello\n")
    [new] = registry.rows()
    assert new.id != row.id
    assert new.spec["limit"] == 7.0
    assert "--max-cost 7" in new.spec["line"]


@pytest.mark.parametrize("limit", [1, 0])
def test_one_whose_ranks_nothing_can_fork_any_more_comes_back(pair: Notebook, limit: int) -> None:
    [row] = registry.rows()
    cell = (
        "import time\nprint('begins', flush=True)\nif is_first('fork server'):\n"
        f"    os.kill(os.getppid(), {signal.SIGKILL})\n    time.sleep(600)"
    )
    if limit:
        said = pair.run(f"%%sky --retry {limit}\n{cell}")
        assert re.search(rf"cluster {row.name} is lost: .*; attempt 2 of 2 begins", said)
        assert said.count("attempt") == 1
    else:
        with pytest.raises(sky.ClusterLost, match=f"cluster {row.name} is lost"):
            pair.run(f"%%sky\n{cell}")
        assert "idle" not in pair.run("%sky status")
        pair.run("%%sky\nis_first('fork server')")
    [new] = registry.rows()
    assert new.name == row.name and new.id != row.id


def test_one_that_was_ended_does_not(pair: Notebook, tmp_path: Path) -> None:
    def end() -> None:
        until((tmp_path / "begun").exists)
        command = [sys.executable, "-m", "jupyter_sky", "down", registry.rows()[0].name]
        subprocess.run(command, check=True, capture_output=True)

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises((sky.ClusterLost, Interrupted)):
        pair.run("%%sky --retry 3\nimport time\nif is_first('begun'): time.sleep(600)")
    thread.join()
    assert registry.rows() == []


def test_scripts_have_torchruns_own(pair: Notebook) -> None:
    with pytest.raises(sky.UsageError, match="--max-restarts"):
        pair.run("%%sky --sh --retry 3\necho")


def test_a_page_shows_which_attempt_it_is(
    opened: Callable[..., LiveNotebook], tmp_path: Path
) -> None:
    page = opened()
    page.succeed(f"%config Sky.plugin = 'none'\nfolder = {str(tmp_path)!r}\n{ONCE}")
    cell = page.succeed("%%sky --nodes 2 --retry 2 --out pid\ndie_once()\npid = os.getpid()")
    first, last = _runs(cell)
    assert first["state"] == "error" and first["attempt"] is None
    assert last["state"] == "ok" and last["attempt"] == [2, 3]
    assert first["earlier"] == [] and last["earlier"] == [first["id"]]
    shown = cell.strips[-1]["text/plain"]
    assert "attempt 2 of 3" in shown
    assert "empty" not in shown, "it begins anew, as it is meant to"
    assert "attempt 2 of 3 begins" in cell.stdout

    # In the background the strip that is there goes on, and so do the run's own words.
    page.succeed("os.remove(f'{folder}/killed')")
    code = "die_once()\nimport jupyter_sky as sky\nrank = sky.instance_info().rank + 10"
    line = "--retry 2 --out rank --background"
    cell = page.succeed(
        f"run = get_ipython().run_cell_magic('sky', {line!r}, {code!r})\n"
        "display(run)\nprint(run.result())"
    )
    assert cell.stdout == "{'rank': 10}\n" and page.value("rank") == 10
    last = _runs(cell)[-1]
    assert last["state"] == "ok" and last["attempt"] == [2, 3] and last["background"]
    assert "attempt 2 of 3 begins" in page.value("run.output")


def test_who_cancels_wants_no_other_attempt(pair: Notebook, tmp_path: Path) -> None:
    pair.run(
        "run = get_ipython().run_cell_magic('sky', '--retry 3 --background', "
        "'import time\\nis_first(\"begun\")\\ntime.sleep(600)')"
    )
    until((tmp_path / "begun").exists)
    with pytest.raises(Interrupted):
        pair.run("run.cancel()\nrun.result()")
    assert pair.run("%%sky\nprint('idle')") == "idle\n"


def _runs(cell: Cell) -> list[Any]:
    """Return each run that a cell's strips have shown, as it was shown last."""
    shown = [strip[MIME]["snapshot"]["run"] for strip in cell.strips]
    return list({run["id"]: run for run in shown}.values())
