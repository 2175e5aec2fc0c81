"""A cluster of Slurm's in the course of time: more nodes, fewer, others, and the end of its job."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import cloud_resources, registry
from jupyter_sky.errors import ClusterLost, SkyError, UsageError
from jupyter_sky.notebook.cluster_factory import ClusterFactory
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.paths import of_the_user
from jupyter_sky.providers.base import MachineGone
from jupyter_sky.providers.slurm import jobs, on_node, partitions
from jupyter_sky.providers.slurm.login import LoginNode, login_node
from jupyter_sky.providers.slurm.partitions import NodeKind
from jupyter_sky.providers.slurm.provider import Slurm
from jupyter_sky.providers.spec import Accelerator, ClusterSpec
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from tests.cluster.cells import Cells
from tests.node_processes import is_there
from tests.paths import ROOT
from tests.providers.slurm.test_provider import (
    HOOK,
    interrupt_when,
    left,
    queue,
    start,
    submit_other,
)
from tests.waiting import until


@pytest.fixture
def job(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """Run the test as if in a job of two nodes with two GPUs each; its number.

    The parameter, if any, is the option that asks Slurm for the GPUs.
    """
    gpus = getattr(request, "param", "--gres=gpu:a100:2")
    command = ["salloc", "--no-shell", "--nodes=2", gpus, "--job-name=mine"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.search(r"allocation (\d+)", said)
    assert found is not None
    monkeypatch.setenv("SLURM_JOB_ID", found[1])
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    try:
        yield found[1]
    finally:
        subprocess.run(["scancel", found[1]], check=True)
        until(lambda: not queue())


def steps() -> str:
    command = ["squeue", "--noheader", "--steps", "--format=%i"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("job", ["--gpus=4", "--gpus-per-task=a100:2"], indirect=True)
def test_gpus_of_the_own_job_are_used_however_they_were_asked_for(job: str) -> None:
    cluster = start("inside", nodes=2, accelerator=Accelerator("A100", 2))
    try:
        found = Cells(cluster).ask("__import__('os').environ['CUDA_VISIBLE_DEVICES']")
        assert found == ["0", "1", "0", "1"]
    finally:
        cluster.down()


def test_settings_for_jobs_submit_none_where_the_notebook_is_in_one(job: str) -> None:
    settings = Sky(provider="slurm", partition="low", account="users", time="5:00")
    factory = ClusterFactory(settings)
    provider = factory.provider(factory.complete(CellOptions(nodes=2)))
    cluster = start("inside", provider=provider, nodes=2)
    try:
        assert queue() == "mine RUNNING None", "another job was submitted"
    finally:
        cluster.down()
    # What a cell types asks for another one, which has the settings, too.
    assert factory.complete(CellOptions(nodes=2, qos="high")).partition == "low"


def test_the_nodes_of_the_own_job_are_used(job: str) -> None:
    provider = Slurm()
    cluster = start("inside", provider=provider, nodes=provider.default_nodes)
    try:
        row = registry.find("inside")
        assert row is not None
        cells = Cells(cluster)
        cells.run("import os")
        assert cells.ask("os.environ['SLURMD_NODENAME']") == ["n1", "n1", "n2", "n2"]
        assert cells.ask("os.environ['CUDA_VISIBLE_DEVICES']") == ["0", "1", "0", "1"]
        assert queue() == "mine RUNNING None", "another job was submitted"
        with pytest.raises(UsageError, match=f"job {job}, in which .* at most `--nodes 2`, or"):
            start("more", nodes=3)
        # Named otherwise, it is another job, for which there is no GPU left.
        with pytest.raises(UsageError, match="has 2 × A100 on each node"):
            start("others", accelerator="H100")
        cluster.scale(1)
        assert cells.ask("os.environ['SLURMD_NODENAME']") == ["n1", "n1"]
        # The one that has become free is taken, and not the one that is in use.
        cluster.scale(2)
        cells.run("import os")
        assert cells.ask("os.environ['SLURMD_NODENAME']") == ["n1", "n1", "n2", "n2"]
    finally:
        cluster.down()
    until(lambda: not steps())
    assert queue() == "mine RUNNING None"
    until(lambda: not left(row.id))


GROWS = """
from tests.providers.slurm.test_provider import start
start("grows", nodes=1).scale(2)
"""


def agent_folders(identity: str) -> list[Path]:
    """Return the folders of agents on nodes of this computer."""
    return [*of_the_user().glob(f"{identity}-*")]


@pytest.mark.parametrize("agents", [1, 2])
def test_a_step_that_was_joining_ends_with_the_cluster_of_a_killed_kernel(
    job: str, agents: int
) -> None:
    """It is killed as soon as Slurm has the step, or when its agent is there."""
    child = subprocess.Popen([sys.executable, "-c", GROWS], cwd=ROOT)
    try:
        row = until(lambda: (found := registry.find("grows")) and found.machines and found)
        until(lambda: len(steps().split()) > 1 and len(agent_folders(row.id)) >= agents)
    finally:
        child.kill()
        child.wait()
    down = [sys.executable, "-m", "jupyter_sky", "down", "grows"]
    said = subprocess.run(down, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "ended; nothing is left running" in said
    until(lambda: not steps())
    until(lambda: not left(row.id))


def test_where_the_own_job_has_ended_another_is_submitted_if_asked_for(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["scancel", job], check=True)
    until(lambda: not queue())
    ended = "in which this notebook was started, has ended: name a `--partition`, to submit a job"
    with pytest.raises(SkyError, match=f"job {job}, {ended}"):
        start("inside")
    start("beside", provider=Slurm(partition="main")).down()
    # Minutes later, Slurm does not know its number any more.
    monkeypatch.setenv("SLURM_JOB_ID", "99999")
    with pytest.raises(SkyError, match=f"job 99999, {ended}"):
        start("inside")


def test_nodes_join_by_a_further_job_and_are_given_back(slurm: Path) -> None:
    cluster = start("grows", provider=Slurm(partition="low"), nodes=1)
    try:
        cells = Cells(cluster)
        cells.run("kept = 1")
        # Also where another kernel sees to it, which knows no settings.
        cluster.close(SkyError("another kernel has it"))
        cells = Cells(cluster := attach("grows"))
        cluster.scale(3)
        assert partitions_of_jobs() == ["low", "low"]
        cells.run("import os")
        assert cells.ask("'kept' in globals()") == [True, False, False]
        assert cells.ask("os.environ['SLURMD_NODENAME']")[1:] == ["n1", "n2"]
        # Two are left, of which one is of the job of two nodes.
        cluster.scale(2)
        assert cells.ask("'kept' in globals()") == [True, False]
        until(lambda: nodes_of_jobs() == [1, 1])
    finally:
        cluster.down()
    until(lambda: not queue())


def test_a_cluster_that_waits_for_its_own_nodes_is_told(slurm: Path) -> None:
    cluster = start("grows", provider=Slurm(exclusive=True), nodes=1)
    said: list[str] = []
    try:
        share = "it waits for nodes to become free (main has 2 nodes, 1 of them this cluster's own)"
        stop = threading.Thread(target=interrupt_when, args=[lambda: share in str(said)])
        stop.start()
        with pytest.raises(KeyboardInterrupt):
            cluster.scale(3, progress=lambda text: said.append(str(text)))
        stop.join()
        said.clear()
        cluster.scale(2, progress=lambda text: said.append(str(text)))
        assert "own" not in str(said)
    finally:
        cluster.down()
    until(lambda: not queue())


def test_another_node_takes_the_place_of_one_that_slurm_sets_down(slurm: Path) -> None:
    told: list[str] = []
    cluster = start("hurt", nodes=2, replace=True)
    row = registry.find("hurt")
    assert row is not None
    try:
        cells = Cells(cluster)
        cells.run("import os")
        control = ["scontrol", "update", "NodeName=n2"]
        subprocess.run([*control, "State=DOWN", "Reason=test"], check=True)
        until(lambda: "replacing n2" in cluster.snapshot()["cluster"]["note"])
        cells.start("import os").follow(notice=told.append)
        assert len(cells.ask("os.environ['SLURMD_NODENAME']")) == 2
        assert told[0].startswith("replacing n2: "), told
    finally:
        cluster.down()
    until(lambda: not queue())
    until(lambda: not left(row.id))


def test_the_end_of_the_job_is_told_in_advance(slurm: Path) -> None:
    cluster = start("short", provider=Slurm(time="2"))
    try:
        cells = Cells(cluster)
        cells.run("saved = []")
        end = re.compile(r"n1 will be taken away by Slurm in [01]:\d\d")
        until(lambda: end.fullmatch(cluster.snapshot()["cluster"]["note"]))
        # A function that comes late is called all the same.
        cells.run(HOOK)
        assert cells.ask("saved") == [[("terminate", True, True)]]
    finally:
        cluster.down()


def test_preemption_is_told_while_there_is_time(slurm: Path) -> None:
    cluster = start("weak", provider=Slurm(partition="low"), nodes=2)
    try:
        cells = Cells(cluster)
        cells.run("saved = []")
        cells.run(HOOK)
        run = cells.start("while not saved: time.sleep(0.01)")
        other = submit_other("--nodes=2", "--exclusive")
        run.follow()
        assert ("terminate", True, True) in cells.ask("saved[0]")
        with pytest.raises(ClusterLost, match=r"job \d+ has ended \(PREEMPTED\)"):
            cells.run("time.sleep(120)")
        cluster.down()
        [spent] = [each for each in registry.all_spent() if each.name == "weak"]
        assert spent.place == "Slurm", "Slurm knows when it has ended"
    finally:
        cluster.down()
        subprocess.run(["scancel", other], check=True)
        until(lambda: not queue())


BUSY = """\
#!/bin/sh
case "$*" in *"%T|%e"*)
    test ! -e {away} || {{
        rm {away}
        echo "slurm_load_jobs error: Socket timed out on send/recv operation" >&2
        exit 1
    }}
esac
exec {squeue} "$@"
"""
"""A squeue whose controller has no time for a node that asks when its job ends: once."""


def test_preemption_is_told_also_where_slurm_has_no_time_to_say_until_when(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, busy = tmp_path / "away", tmp_path / "squeue"
    busy.write_text(BUSY.format(away=away, squeue=shutil.which("squeue")))
    busy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    cluster = start("busy", provider=Slurm(partition="low"))
    try:
        cells = Cells(cluster)
        cells.run("saved = []")
        cells.run(HOOK)
        run = cells.start("while not saved: time.sleep(0.01)")
        away.touch()
        other = submit_other("--nodes=2", "--exclusive")
        run.follow()
        assert not away.exists()
        assert ("terminate", True, True) in cells.ask("saved[0]")
    finally:
        cluster.down()
        subprocess.run(["scancel", other], check=True)
        until(lambda: not queue())


AWAY = """\
#!/bin/sh
if test ! -e {asked}; then
    touch {asked}
    echo "slurm_load_jobs error: Unable to contact slurm controller" >&2
    exit 1
fi
echo "RUNNING|{end}"
"""
"""A squeue whose controller has no time when it is asked first."""


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for an agent; SIGTERM is as it was afterwards."""
    usual = signal.getsignal(signal.SIGTERM)
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()
    signal.signal(signal.SIGTERM, usual)


def test_the_end_is_announced_also_where_slurm_had_no_time_at_the_start(
    agent: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = datetime.fromtimestamp(int(time.time()) + 60)
    squeue, notice = tmp_path / "squeue", tmp_path / "notice.json"
    squeue.write_text(AWAY.format(asked=tmp_path / "asked", end=end.isoformat()))
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(on_node, "_LOOK_EVERY", 0.1)

    def end_when_told() -> None:
        try:
            until(notice.exists, within=20.0)
        finally:
            agent.kill()

    threading.Thread(target=end_when_told).start()
    on_node._Keeper(agent.pid, notice).wait()
    assert json.loads(notice.read_text()) == {"kind": "terminate", "at": end.timestamp()}


def failure_on_node(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> str:
    """Let a node start an agent with other programs; return what it says of its failure."""
    job, place = folder / "job", folder / "programs"
    job.mkdir()
    place.mkdir()
    for name, text in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{text}")
        (place / name).chmod(0o755)
    spec = AgentSpec(cluster="c", id="0123", socket="", blobs="", ranks=(), grace=60, cwd="/")
    (job / on_node.SPECS).write_text(json.dumps({"specs": [json.loads(spec.to_json())]}))
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[0-1]")
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    usual = {
        each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    }
    try:
        with pytest.raises(SkyError) as caught:
            on_node.main(job, "", 0o077)
    finally:
        for each, handler in usual.items():
            signal.signal(each, handler)
    answer = json.loads((job / on_node.ANSWER.format(0)).read_text())
    assert answer["failed"] == str(caught.value)
    return str(caught.value)


HANGS = """
echo $$ >{pid}
exec sleep 600
"""


def test_a_node_where_the_agent_hangs_at_its_start_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_node, "_START_WITHIN", 2)
    hangs = HANGS.format(pid=tmp_path / "pid")
    said = failure_on_node(tmp_path, monkeypatch, python=hangs, scontrol="")
    assert said == "the agent did not start within 2 s"
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not any(is_there(each) for each in psutil.process_iter() if each.pid == pid))


SOMETIMES = """
echo >>{asked}
if test "$(wc -l <{asked})" -lt {answers}; then
    echo "slurm_load_node error: Unable to contact slurm controller" >&2
    exit 1
fi
test "$2" = hostnames && echo "n0 n1" || echo "NodeName=n1 NodeAddr=127.0.0.1"
"""
"""An scontrol whose controller has no time for some questions."""


def test_a_node_asks_again_where_slurm_has_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_node, "_PAUSE", 0.01)
    answers = SOMETIMES.format(asked=tmp_path / "asked", answers=5)
    # It goes on to the agent, which no Python starts here.
    said = failure_on_node(
        tmp_path, monkeypatch, scontrol=answers, python="echo no agent >&2\nexit 1"
    )
    assert "no agent" in said


def test_a_node_that_slurm_never_answers_says_so_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_node, "_PAUSE", 0.01)
    silent = SOMETIMES.format(asked=tmp_path / "asked", answers=1000)
    assert failure_on_node(tmp_path, monkeypatch, scontrol=silent) == (
        "the address of another node could not be found (slurm_load_node error: Unable to contact "
        "slurm controller): run this again"
    )


def test_a_controller_that_is_away_costs_nothing(slurm: Path) -> None:
    cluster = start("alone", nodes=2)
    try:
        cells = Cells(cluster)
        cells.run("import os")
        controller = int((slurm / "slurmctld.pid").read_text())
        os.kill(controller, signal.SIGSTOP)
        try:
            cells.run("value = int(os.environ['SLURM_PROCID'])")
            assert cells.ask("value") == [0, 1]
        finally:
            os.kill(controller, signal.SIGCONT)
        assert cells.ask("value") == [0, 1]
    finally:
        cluster.down()
    until(lambda: not queue())


def test_a_job_that_is_suspended_goes_on_when_it_is_resumed(slurm: Path) -> None:
    cluster = start("paused")
    try:
        cells = Cells(cluster)
        run = cells.start("import time\nfor _ in range(100): time.sleep(0.01)\ndone = True")
        control(cluster.name, "suspend")
        said = "its run goes on when Slurm resumes it"
        until(lambda: cluster.snapshot()["cluster"]["note"].endswith(said))
        control(cluster.name, "resume")
        run.follow()
        run.check()
        assert cells.ask("done") == [True]
    finally:
        cluster.down()
    until(lambda: not queue())


def control(name: str, what: str) -> None:
    """Do something to the job of a cluster, as who runs Slurm may."""
    row = registry.find(name)
    assert row is not None
    subprocess.run(["scontrol", what, row.machines[0]["id"]], check=True)


def test_an_agent_that_is_killed_leaves_nothing(slurm: Path) -> None:
    cluster = start("killed")
    row = registry.find("killed")
    assert row is not None
    [machine] = row.machines
    try:
        cells = Cells(cluster)
        cells.run("import time")
        run = cells.start("time.sleep(600)")
        [agent] = [
            each
            for each in psutil.process_iter(["cmdline"])
            if each.info["cmdline"]
            and each.info["cmdline"][-1] == machine["folder"]
            and "jupyter_sky.node" in each.info["cmdline"]
        ]
        agent.kill()
        run.follow()
        with pytest.raises(ClusterLost, match=r"killed is lost: .*agent"):
            run.check()
        # The job has nothing left to do.
        until(lambda: not queue())
    finally:
        cluster.down()
    assert not left(row.id)
    assert registry.find("killed") is None


def test_gc_finds_the_job_of_a_notebook_that_was_killed(slurm: Path) -> None:
    other = submit_other("--nodes=2", "--exclusive")
    code = "from tests.providers.slurm.test_provider import start\nstart('lost')"
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        until(lambda: "sky-lost PENDING" in queue())
        child.send_signal(signal.SIGKILL)
        child.wait()
        [found], trouble = cloud_resources.find()
        assert re.fullmatch(r"lost: job \d+ \(pending\) in Slurm", str(found)), str(found)
        assert not trouble
        assert found.is_orphaned
        registry.remove(found.resources.id)
        # Seen from another login node, a notebook there may wait for it.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("socket.gethostname", lambda: "login2")
            [there], _ = cloud_resources.find()
            assert not there.is_orphaned
        [found], _ = cloud_resources.find()
        assert found.is_orphaned
        found.remove()
        assert "sky-lost" not in queue()
    finally:
        child.kill()
        subprocess.run(["scancel", other], check=True)
        until(lambda: not queue())


COUNTED = """\
#!/bin/sh
echo "$0" >>"{log}"
exec /usr/bin/{name} "$@"
"""


def test_connections_that_break_at_once_ask_the_controller_once(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start("counted", nodes=2)
    try:
        row = registry.find("counted")
        assert row is not None
        machines = [Slurm().machine(each) for each in row.machines]
        subprocess.run(["scancel", machines[0].id], check=True)
        until(lambda: not queue())
    finally:
        cluster.down()
    log = tmp_path / "log"
    for name in ("squeue", "scontrol", "sinfo"):
        (tmp_path / name).write_text(COUNTED.format(log=log, name=name))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    jobs._asked.clear()

    async def open_all() -> list[object]:
        opened = [machine.open() for machine in [*machines] * 6]
        return await asyncio.gather(*opened, return_exceptions=True)

    for _ in range(2):
        gone = event_loop.wait(open_all())
        assert {type(each) for each in gone} == {MachineGone}
        assert {str(each) for each in gone} == {f"job {machines[0].id} has ended (CANCELLED)"}
        assert len(log.read_text().splitlines()) == 1


def attach(name: str) -> Cluster:
    """Connect to a cluster as another kernel does."""
    row = registry.find(name)
    assert row is not None
    cluster = Cluster.attach(row, Slurm(), assemble(ClusterSpec(name=name), [])[1])
    assert cluster is not None
    return cluster


def partitions_of_jobs() -> list[str]:
    command = ["squeue", "--noheader", "--format=%P"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return said.split()


def nodes_of_jobs() -> list[int]:
    command = ["squeue", "--noheader", "--format=%D"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(map(int, said.split()))


def of_gpus(
    monkeypatch: pytest.MonkeyPatch, wanted: str, *names: str | None, partition: str | None = None
) -> str:
    """Return what is asked for where the kinds of nodes of a partition have these GPUs."""
    there = [NodeKind("main", 2, 2, 2, 4000, name, 4, "infinite", True) for name in names]
    there.append(NodeKind("other", 2, 2, 2, 4000, "nvidia_a100-pcie-40gb", 4, "infinite", False))

    async def kinds(at: LoginNode) -> list[NodeKind]:
        return there

    monkeypatch.setattr(partitions, "node_kinds", kinds)
    asked = partitions.resource_of(login_node(None), Accelerator(wanted, 2), partition)
    return event_loop.wait(asked)


@pytest.mark.parametrize(
    ("wanted", "names", "asked"),
    [
        ("A100", ["a100"], "gpu:a100:2"),
        ("A100", ["nvidia_a100-sxm4-80gb"], "gpu:nvidia_a100-sxm4-80gb:2"),
        ("A100", [None], "gpu:2"),
        ("H100", ["v100"], "gpu:h100:2"),
        # One of several, in whatever order Slurm has them.
        ("A100", ["a100-80gb", "a100"], "gpu:a100:2"),
        ("A100", ["a100", "a100-80gb"], "gpu:a100:2"),
        ("A100-80GB", ["a100", "a100-80gb"], "gpu:a100-80gb:2"),
        (
            "A100-80GB",
            ["nvidia_a100-sxm4-40gb", "nvidia_a100-sxm4-80gb"],
            "gpu:nvidia_a100-sxm4-80gb:2",
        ),
        ("A100", ["h100"], "gpu:nvidia_a100-pcie-40gb:2"),
    ],
)
def test_gpus_are_asked_for_by_the_names_that_slurm_has(
    wanted: str, names: list[str | None], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_gpus(monkeypatch, wanted, *names) == asked


def test_gpus_of_which_none_has_just_that_name_are_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = "nvidia_a100-sxm4-40gb", "nvidia_a100-sxm4-80gb"
    with pytest.raises(UsageError, match=f"can be {' or '.join(names)} here: name the memory"):
        of_gpus(monkeypatch, "A100", *names)
    found = of_gpus(monkeypatch, "A100", *names, partition="other")
    assert found == "gpu:nvidia_a100-pcie-40gb:2"
