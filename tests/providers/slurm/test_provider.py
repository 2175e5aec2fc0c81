"""The Slurm provider: from the queue of a real Slurm to a cluster, and out of it again."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.cluster_factory import ClusterFactory
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.paths import home, of_the_user
from jupyter_sky.providers.slurm import jobs, login, starting
from jupyter_sky.providers.slurm import queue as slurm_queue
from jupyter_sky.providers.slurm.job_state import refusal_in_words
from jupyter_sky.providers.slurm.login import SlurmError, login_node, own_environment
from jupyter_sky.providers.slurm.partitions import diagnose, node_kinds
from jupyter_sky.providers.slurm.provider import Slurm
from jupyter_sky.providers.slurm.queue import mark
from jupyter_sky.providers.slurm.script import OUTPUT
from jupyter_sky.providers.slurm.start_folder import StartFolder
from jupyter_sky.providers.spec import Accelerator, ClusterSpec
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from tests.cluster.cells import Cells
from tests.paths import ROOT
from tests.waiting import until


def start(name: str, said: list[str] | None = None, provider: Slurm | None = None, **options):
    spec, runtime_env = assemble(ClusterSpec(name=name, **options), [])
    note = (lambda text: said.append(str(text))) if said is not None else (lambda text: None)
    return Cluster.start(spec, provider or Slurm(), runtime_env, note)


def queue() -> str:
    """Return the jobs that wait or run."""
    return subprocess.run(
        ["squeue", "--noheader", "--format=%j %T %r"], capture_output=True, text=True, check=True
    ).stdout.strip()


def left(identity: str) -> list[Path]:
    """Return what there still is of a cluster's files."""
    return [*of_the_user().glob(f"{identity}*"), *home().glob(f"slurm/{identity}*")]


def without_owner() -> list[Path]:
    """Return what starts have left in the home."""
    return [each for each in home().glob("slurm/*") if each.name not in ("owner", "logins")]


def test_a_node_that_hangs_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(login, "_BRIDGE_WITHIN", 2)
    wait = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    with pytest.raises(OSError, match="the node does not answer"):
        login_node(None).open_bridge([sys.executable, "-c", f"{wait}; time.sleep(600)"], "/", 0)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not psutil.pid_exists(pid))


def test_a_job_becomes_a_cluster_and_ends_with_it(slurm: Path) -> None:
    said: list[str] = []
    cluster = start("pair", said, nodes=2)
    try:
        row = registry.find("pair")
        assert row is not None
        assert queue() == "sky-pair RUNNING None"
        assert [machine["host"] for machine in row.machines] == ["n1", "n2"]
        assert any(text.startswith("job ") for text in said)
        assert not without_owner(), "the keys of the agents are still in the home"
        spec = AgentSpec.from_json(Path(row.machines[0]["folder"], "spec.json").read_text())
        assert spec.first_grace == 600, "a node does not wait for those that start late"
        cells = Cells(cluster)
        cells.run("import os")
        assert cells.ask("os.environ['SLURMD_NODENAME']") == ["n1", "n2"]
        job = row.machines[0]["id"]
        assert cells.ask("os.environ['SLURM_JOB_ID']") == [job, job]
        # What ranks write is as open to a group as what the user writes.
        cells.run("umask = os.umask(0)")
        own = os.umask(0)
        os.umask(own)
        assert cells.ask("umask") == [own, own]
    finally:
        cluster.down()
    until(lambda: not queue())
    until(lambda: not left(row.id))


def test_the_interface_of_the_settings_is_that_of_nodes(slurm: Path) -> None:
    factory = ClusterFactory(Sky(interface="lo"))
    cluster = start("alone", provider=factory.provider(CellOptions(provider="slurm")), nodes=1)
    try:
        cells = Cells(cluster)
        cells.run("import json, os")
        assert cells.ask("json.loads(os.environ['COMPUTE_POOL'])['interface']") == ["lo"]
    finally:
        cluster.down()
    factory = ClusterFactory(Sky(interface="ib7"))
    with pytest.raises(SkyError, match="there is no interface ib7 with an address, but .*lo"):
        start("alone", provider=factory.provider(CellOptions(provider="slurm")), nodes=1)
    until(lambda: not queue())


def test_what_users_have_set_for_slurms_commands(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their account or partition counts, unless they type one; how they are shown things, not."""
    for name, value in {
        "SBATCH_PARTITION": "low",
        "SCANCEL_INTERACTIVE": "1",
        "SQUEUE_STATES": "COMPLETED",
        "SQUEUE_FORMAT2": "JobID",
        "SBATCH_WAIT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    for provider, partition in ((Slurm(), "low"), (Slurm(partition="main"), "main")):
        cluster = start("settled", provider=provider)
        try:
            cells = Cells(cluster)
            cells.run("import os")
            assert cells.ask("os.environ['SLURM_JOB_PARTITION']") == [partition]
        finally:
            cluster.down()
    held = ["sbatch", "--hold", "--comment", mark("0badcafe", "held", "start"), "--wrap=true"]
    subprocess.run(held, env=own_environment(), check=True)
    event_loop.wait(Slurm().release_cluster("0badcafe", None, lambda text: None))
    for name in ("SQUEUE_STATES", "SQUEUE_FORMAT2"):
        monkeypatch.delenv(name)
    until(lambda: not queue())


@pytest.mark.parametrize(
    "said", ["12", "12;lab", "Submitted batch job 12", "Welcome!\n--> Looks fine\n12\n3 hours left"]
)
def test_the_number_of_a_job_is_found_in_what_a_site_prints(said: str) -> None:
    assert slurm_queue._number(said) == "12"


def test_what_has_no_number_of_a_job_is_shown() -> None:
    with pytest.raises(SkyError, match="has not said the number of the job, but: nothing"):
        slurm_queue._number("")


@pytest.mark.parametrize(
    ("options", "words", "advice"),
    [
        (
            {"partition": "moon"},
            "invalid partition specified: moon.*Invalid partition name",
            "specified: `%sky offers --provider slurm` shows those that there are",
        ),
        (
            {"gres": "gpu:moon:1"},
            "Requested node configuration is not available",
            ": `%sky offers --provider slurm` shows what nodes have",
        ),
        (
            {"gres": "moon:1"},
            "Invalid generic resource",
            ": `%sky offers --provider slurm` shows what nodes have",
        ),
        (
            {"constraint": "moon"},
            "Invalid feature specification",
            ": type another `--constraint`: `sinfo --format=%f` lists them",
        ),
    ],
)
def test_what_slurm_refuses_is_said_in_its_words_and_what_to_do(
    slurm: Path, options: dict[str, str], words: str, advice: str
) -> None:
    with pytest.raises(SkyError, match=words) as refused:
        start("lost", provider=Slurm(**options))
    assert str(refused.value).endswith(advice)
    assert registry.find("lost") is None
    assert not queue()


def test_a_time_that_the_partition_does_not_allow_is_refused_with_advice() -> None:
    said = "Requested time limit is invalid (missing or exceeds some limit)"
    assert refusal_in_words(said).startswith("type another `--time`: ")


def test_a_python_that_nodes_lack_is_said(slurm: Path) -> None:
    said = "nowhere/python: No such file or directory: nodes do not have this Python; name one"
    with pytest.raises(SkyError, match=said):
        start("lost", provider=Slurm(python="/nowhere/python"))
    assert not queue()
    assert registry.find("lost") is None


def test_what_a_task_says_is_waited_for_where_its_end_is_known_first(tmp_path: Path) -> None:
    output, ended = tmp_path / OUTPUT, "srun: error: n1: task 0: Exited with exit code 3\n"
    output.write_text(ended)
    later = threading.Timer(1.0, output.write_text, [f"{ended}no CUDA here\n"])
    later.start()
    assert asyncio.run(StartFolder(login_node(None), str(tmp_path)).last_line()) == ", no CUDA here"
    later.join()


def test_a_node_that_fails_alone_is_said_while_others_are_ready(
    slurm: Path, tmp_path: Path
) -> None:
    """The job goes on, with the agents of the others: nobody would see an end of the wait."""
    python = tmp_path / "python"
    lines = ["#!/bin/bash", "[ $SLURMD_NODENAME = n1 ] || { echo no CUDA here >&2; exit 3; }"]
    python.write_text("\n".join([*lines, f'exec {sys.executable} "$@"\n']))
    python.chmod(0o755)
    with pytest.raises(SkyError, match=r"job \d+, n2: task 1: Exited with exit code 3, no CUDA"):
        start("half", provider=Slurm(python=str(python)), nodes=2)
    assert registry.find("half") is None
    until(lambda: not queue())


def test_a_home_that_is_full_is_said(slurm: Path) -> None:
    starts = home() / "slurm"
    starts.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(starts)], check=True)
    try:
        with pytest.raises(OSError, match="No space left"):
            (starts / "large").write_bytes(bytes(2**16))
        with pytest.raises(SkyError, match="cannot be written to: No space left on device"):
            start("crowded")
        os.truncate(starts / "large", 8 * 1024)
        with pytest.raises(SkyError, match="the home that nodes share is full"):
            start("crowded")
        assert not queue()
        assert registry.find("crowded") is None
    finally:
        subprocess.run(["umount", str(starts)], check=True)


def test_hours_in_the_queue_are_few_questions_to_slurm() -> None:
    waited, looks = 0.0, 0
    while waited < 8 * 3600:
        waited += starting.seconds_of_look(waited)
        looks += 1
    assert looks < 1100, "about two in a minute"
    assert starting.seconds_of_look(0.0) < 1, "whoever need not wait is not kept waiting"


def test_stop_takes_a_pending_job_back(slurm: Path) -> None:
    said: list[str] = []
    other = submit_other("--nodes=2", "--exclusive")
    before = submit_other("--nodes=2", "--exclusive")
    try:
        interrupted = threading.Thread(
            target=interrupt_when, args=[lambda: "pending: 1 job of main is before it" in str(said)]
        )
        interrupted.start()
        with pytest.raises(KeyboardInterrupt):
            start("patient", said)
        interrupted.join()
        assert "sky-patient" not in queue()
        assert registry.find("patient") is None
        assert not without_owner()
    finally:
        subprocess.run(["scancel", before, other], check=True)
        until(lambda: not queue())


QUEUE_OF_ONE = """\
#!/bin/sh
echo "{state}|None|N/A|main"
"""


@pytest.mark.parametrize("state", ["COMPLETING", "RUNNING"])
def test_a_job_that_does_not_end_is_not_waited_for_without_an_end(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a node cannot kill a process, or a site's epilog hangs."""
    for name in ("squeue", "scancel"):
        (tmp_path / name).write_text(QUEUE_OF_ONE.format(state=state))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(jobs, "_COMPLETES_WITHIN", 0.2)
    monkeypatch.setattr(jobs, "_ENDS_WITHIN", 1.0)
    monkeypatch.setattr(jobs, "_LONGEST_PAUSE", 0.4)
    said: list[object] = []
    ending = jobs.cancel(login_node(None), "7", said.append)
    if state == "COMPLETING":
        event_loop.wait(ending)
        return
    with pytest.raises(SlurmError, match="job 7 is still there after 1 s: `scancel 7` ends it"):
        event_loop.wait(ending)
    assert said == ["waiting for the end of job 7"]


LATE_ANSWER = """\
#!/bin/sh
case "$1" in --version) exec {sbatch} "$@";; esac
{sbatch} "$@" >/dev/null
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""


@pytest.mark.parametrize("is_late", [False, True])
def test_a_job_that_is_cancelled_in_the_queue_is_said_to_be(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """It is known also where Slurm takes it and sbatch waits for the answer in vain."""
    said: list[str] = []
    if is_late:
        (tmp_path / "sbatch").write_text(LATE_ANSWER.format(sbatch=shutil.which("sbatch")))
        (tmp_path / "sbatch").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def cancel() -> None:
        until(lambda: any("is pending" in each for each in said))
        subprocess.run(["scancel", "--me"], check=True)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(SkyError, match=r"^job \d+ was cancelled while it waited, by somebody"):
        start("waits", said, provider=Slurm(sbatch="--hold"))
    canceller.join()
    assert registry.find("waits") is None


def test_each_rank_has_a_gpu_of_those_that_slurm_gave(slurm: Path) -> None:
    began = time.time()
    cluster = start("gpus", accelerator=Accelerator("A100", 2))
    try:
        # Where others show dollars, Slurm shows GPU hours: of two GPUs, since they came.
        time_there = 2 * (time.time() - cluster._controller.cost.meter.since) / 3600
        view = cluster.snapshot()["cluster"]
        assert (view["price"], view["unit"]) == (None, "GPU hours")
        assert time_there <= (view["cost"] or 0.0) < 2 * (time.time() - began) / 3600
        row = registry.find("gpus")
        assert row is not None
        cost = cluster._controller.cost
        assert (row.meter, row.rate) == (cost.meter, cost.rate)
        assert row.created < row.meter.since, "the time in the queue is counted"
        cells = Cells(cluster)
        cells.run("import os")
        assert cells.ask("os.environ['CUDA_VISIBLE_DEVICES']") == ["0", "1"]
        with pytest.raises(SkyError, match="Requested node configuration is not available"):
            start("many", accelerator=Accelerator("A100", 3))
    finally:
        cluster.down()
    until(lambda: not queue())


def test_what_is_asked_for_beside_gpus_is_asked_of_slurm(slurm: Path) -> None:
    wanted = Slurm(gres="gpu:a100:1", exclusive=True, sbatch="--nice=5")
    cluster = start("beside", provider=wanted)
    try:
        [row] = [each for each in registry.rows() if each.name == "beside"]
        command = ["scontrol", "--oneliner", "show", "job", row.machines[0]["id"]]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert re.search("gres[:/]gpu:a100:1", said), said  # Slurm writes it in either way
        assert all(each in said for each in ("OverSubscribe=NO", "Nice=5")), said
    finally:
        cluster.down()
    until(lambda: not queue())


def test_a_cluster_that_nobody_uses_any_more_ends_its_job(slurm: Path) -> None:
    code = (
        "import os\nfrom tests.providers.slurm.test_provider import start\n"
        "from jupyter_sky.providers.slurm.provider import Slurm\n"
        "start('left', provider=Slurm(grace=1.0))\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    row = registry.find("left")
    assert row is not None
    until(lambda: not queue())
    until(lambda: not left(row.id))


def test_the_user_sees_what_there_is(slurm: Path) -> None:
    [kind] = [each for each in event_loop.wait(node_kinds(login_node(None))) if each.is_default]
    assert str(kind) == "main: 2 × A100, 2 CPUs, 4 GB, 2 of 2 nodes idle, at most 1:00:00"
    assert {each.fix for each in diagnose(login_node(None))} == {""}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        [found] = diagnose(login_node(None))
    assert found.found == "cannot be used"
    assert "run the notebook on a login node of the Slurm cluster" in found.fix


HOOK = """\
import jupyter_sky as sky
import time

@sky.on_interruption
def save(notice):
    saved.append((notice.kind, 0 < notice.seconds < 125, notice.here))
"""


def submit_other(*options: str) -> str:
    """Submit a job of somebody else, and return its number."""
    command = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap=sleep 600"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.strip()


def interrupt_when(condition) -> None:
    """Press Stop when a condition holds."""
    until(condition)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_where_commands_belong_to_no_slurm_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_CONF")
    if Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this computer belongs to a Slurm cluster")
    before = registry.rows()
    with pytest.raises(SkyError, match="belong to no Slurm cluster") as refused:
        start("nowhere")
    assert "res_nsearch" not in str(refused.value)
    assert registry.rows() == before
