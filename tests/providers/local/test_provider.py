"""The local provider: what it refuses, what it says, and what ranks find there."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.agent import start_agent
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.local.machine import LocalMachine
from jupyter_sky.providers.node_defaults import SHARED_MEMORY
from jupyter_sky.providers.spec import ClusterSpec, Image
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from tests.cluster import cells as cells_of
from tests.node_processes import crowded, processes_of_node
from tests.waiting import PATIENCE, until


def said(**image) -> str:
    spec = ClusterSpec(name="asking", image=Image(**image))
    return "\n".join(Local().check(spec, ()))


def test_a_framework_is_looked_for_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy_one").mkdir()
    (tmp_path / "heavy_one" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    spec = ClusterSpec(name="asking")
    Local().check(spec, ["heavy_one.part"])
    with pytest.raises(SkyError, match=r"^no_such_one is not installed .* `%pip install no_such_"):
        Local().check(spec, ["no_such_one.part"])


def test_more_ranks_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    Local().check(ClusterSpec(name="asking", nodes=20, procs_per_node=4), ())
    with pytest.raises(UsageError, match=r"^100,000,000 local .* room for [\d,]+ at most"):
        Local().check(ClusterSpec(name="asking", nodes=10_000, procs_per_node=10_000), ())
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (1024, min(most, 4096)))
    with pytest.raises(UsageError, match=r"^600 local ranks .* has room for 512 at most"):
        Local().check(ClusterSpec(name="asking", nodes=600), ())


def test_an_absurd_number_is_refused_before_anything_is_made_of_it() -> None:
    with pytest.raises(UsageError, match="^nodes is 99,999,999,999: .* of 10,000 at most"):
        ClusterSpec(name="asking", nodes=99_999_999_999)
    with pytest.raises(UsageError, match="^procs_per_node is 1,000,000: "):
        ClusterSpec(name="asking", procs_per_node=1_000_000)


def test_an_image_that_fits_is_passed_over() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    pip = ["numpy>=1.20", "numpy; python_version < '3'", "./mine", "git+https://example.org/x"]
    assert said(python=here, pip=pip) == ""


def test_what_the_environment_lacks_is_said_with_what_to_type() -> None:
    assert "lacks a @ https://****@h.org/a.whl:" in said(pip=["a @ https://me:secret@h.org/a.whl"])
    text = said(pip=["no-such-package>=2", "numpy<1"])
    assert "lacks no-such-package>=2" in text
    assert "where numpy<1 was asked for" in text
    assert "`%pip install 'no-such-package>=2' 'numpy<1'`" in text


def test_another_python_is_said() -> None:
    assert "where Python 3.1 was asked for" in said(python="3.1")


def test_ranks_find_what_the_image_says(new) -> None:
    image = Image(env={"MINE": "a b"}, shell_vars={"TOLD": "echo $((40 + 2))"})
    cells = new(nodes=1, image=image)
    cells.run("import os, shutil")
    assert cells.ask("os.environ['MINE'], os.environ['TOLD']") == [("a b", "42")]
    # As if the environment had been activated, which a kernel's rarely is.
    script = str(Path(sys.executable).parent)
    assert cells.ask("os.environ['PATH'].split(os.pathsep)[0]") == [script]


def start(name: str, **options) -> Cluster:
    spec, runtime_env = assemble(ClusterSpec(name=name, **options), [])
    return Cluster.start(spec, Local(), runtime_env)


def test_a_shell_variable_without_a_value_stops_the_start() -> None:
    image = Image(shell_vars={"TOKEN": "echo no token >&2; exit 3"})
    with pytest.raises(SkyError, match=r"shell_vars\['TOKEN'\].*status 3, no token"):
        start("shell", image=image)
    assert registry.find("shell") is None


def test_a_plugins_shell_commands_run_before_the_ranks_start(new, tmp_path: Path) -> None:
    plugin = (
        sky.Plugin.create("data")
        .with_image_transform(lambda image, cluster: replace(image, env={"WHERE": str(tmp_path)}))
        .with_bootstrap(lambda cluster: [f'seq {cluster.spec.nodes} > "$WHERE/made"', "sleep 9 &"])
        .with_around_app(lambda info: nullcontext())
    )
    spec, runtime_env = assemble(ClusterSpec(name="prepared", nodes=2), [plugin])
    cluster = Cluster.start(spec, Local(), runtime_env)
    cluster.down()
    assert (tmp_path / "made").read_text() == "1\n2\n"


def test_a_shell_command_that_fails_stops_the_start() -> None:
    image = Image(bootstrap=["true", "echo no such disk >&2; exit 4", "touch never"])
    with pytest.raises(SkyError, match="`echo no such disk .*` ended with status 4, no such disk"):
        start("broken", image=image)
    assert registry.find("broken") is None


def test_a_working_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(SkyError, match="working folder no longer exists"):
        start("nowhere")
    assert registry.find("nowhere") is None


def test_a_working_folder_that_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    cells = cells_of.start(1, framework=False)
    try:
        shutil.rmtree(folder)
        folder.mkdir()
        with pytest.raises(SkyError, match="working folder no longer exists"):
            cells.ask("1")
        monkeypatch.chdir(folder)
        with pytest.raises(RankLost):
            cells.run("import os\nos._exit(3)")
        assert cells.ask("__import__('os').getcwd()") == [str(folder)]
    finally:
        cells.cluster.down()


def test_a_path_in_the_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_by_path.py").write_text("x = 7")
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    cells = cells_of.start(1, framework=False)
    try:
        assert cells.ask("__import__('found_by_path').x") == [7]
    finally:
        cells.cluster.down()


def test_a_home_that_cannot_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(SkyError, match="set JUPYTER_SKY_HOME"):
        start("homeless")


def test_long_temporary_folders_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(long / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(long))
    start("long").down()


def test_a_cluster_that_another_process_is_about_to_start_is_left_alone() -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        starter = processes.describe(other.pid)
        registry.record("abcdef01", "taken", "local", {"nodes": 1, "starter": starter})
        with pytest.raises(SkyError, match="being started by another notebook"):
            start("taken")
    finally:
        other.kill()
        other.wait()
    # The process is gone, and has left nothing but its entry.
    start("taken").down()


def test_a_cluster_of_another_computer_is_not_taken_for_a_dead_one() -> None:
    cluster = start("shared")
    try:
        row = registry.find("shared")
        assert row is not None
        other = {"computer": "another-host", "booted": "at another time"}
        away = [{**machine, **other} for machine in row.machines]
        registry.record_machines(row.id, away)
        with pytest.raises(SkyError, match="runs on another-host"):
            Cluster.attach(replace(row, machines=away), Local(), cluster.runtime_env)
        with pytest.raises(SkyError, match="there is a cluster shared already"):
            start("shared")
        assert registry.find("shared") is not None
    finally:
        cluster.down()


def test_an_agent_that_is_late_to_answer_ends_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, refused = LocalMachine.open, list[LocalMachine]()

    async def late(machine: LocalMachine) -> socket.socket:
        if len(refused) < 2:
            refused.append(machine)
            raise OSError("its agent did not answer")
        return await usual(machine)

    monkeypatch.setattr(LocalMachine, "open", late)
    start("late").down()
    assert len(refused) == 2


def test_an_agent_that_has_not_accepted_others_for_long_is_not_gone(tmp_path: Path) -> None:
    machine = LocalMachine(tmp_path, tmp_path / "blobs", 0, ())
    with crowded(tmp_path), pytest.raises(OSError, match="accepts no connection") as raised:
        asyncio.run(machine.open())
    assert not isinstance(raised.value, AgentGone)
    with pytest.raises(AgentGone):
        asyncio.run(machine.open())


def test_shared_memory_of_a_killed_agent_is_given_back_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start("running")
    [other] = registry.find("running").machines
    never = SHARED_MEMORY / f"jupyter-sky-{os.getpid() % 10**8:08d}-0"
    never.mkdir()
    os.utime(never, (0, 0))
    with monkeypatch.context() as patch:
        patch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "first"))
        start("killed").close()  # the notebook is gone
        [machine] = registry.find("killed").machines
        assert not never.exists()
        agent = psutil.Process(machine["pid"])
        # Who loses its agent cleans up: without that, as when a container is killed, nobody does.
        processes = [*reversed(processes_of_node(agent))]
        for process in processes:
            process.suspend()
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=PATIENCE)
        # Nothing but the memory tells of it any more.
        shutil.rmtree(tmp_path / "first")
        patch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "second"))
        start("next").down()
    assert not Path(machine["blobs"]).exists()
    assert Path(other["blobs"]).exists()
    running.down()
    assert not Path(other["blobs"]).exists()


def test_start_files_of_python_and_helpers_of_the_kernel_do_no_harm(tmp_path, monkeypatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # A helper of the notebook's process, which ends with it.
    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/tmp/wandb-1/socket")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    folder = tmp_path / "0000000f-0"
    (folder / "blobs").mkdir(parents=True)
    spec = AgentSpec(
        cluster="a",
        id="0000000f",
        socket=str(folder / "agent.sock"),
        blobs=str(folder / "blobs"),
        ranks=(),
        grace=1.0,
        cwd=str(tmp_path),
    )
    agent = psutil.Process(start_agent(folder, spec)["pid"])
    try:
        [fork_server] = agent.children()
        environment = fork_server.environ()
        assert environment["WANDB_PROJECT"] == "mine"
        assert "WANDB_SERVICE" not in environment
    finally:
        agent.kill()
    until(lambda: not agent.is_running())
