"""The life of a cluster: that it ends whole, survives its notebook, and is found again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control import lifecycle, recovery
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.network.blobs import shared_memory
from jupyter_sky.cluster.network.blobs.download import Downloads
from jupyter_sky.cluster.network.upload import Uploads
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.scaling import AddedNodes
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import event_loop
from tests.conftest import processes_of
from tests.faults.parts import agent_of
from tests.node_processes import processes_of_node
from tests.waiting import PATIENCE, until


def everything(cells) -> list[psutil.Process]:
    """Return agent, fork server and ranks of a cluster."""
    machine = json.loads(json.dumps(registry.find(cells.cluster.name).machines[0]))
    agent = psutil.Process(machine["pid"])
    return processes_of_node(agent)


def wait_for(path: Path) -> None:
    """Wait until a file is there; the test's time-out bounds it."""
    while not path.exists():
        time.sleep(0.01)


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive


def test_down_frees_what_a_run_that_waits_for_a_node_would_have_sent(new, monkeypatch) -> None:
    waits, value = threading.Event(), np.zeros(2**18)
    kept = weakref.ref(value)

    async def wait_for_node(controller: Controller) -> None:
        waits.set()
        await controller.until(lambda: False)

    cells = new(nodes=1, framework=False)
    monkeypatch.setattr(recovery, "make_whole", wait_for_node)
    cells.namespace["value"] = value
    run = cells.start("pass", names=["value"])
    assert waits.wait(PATIENCE)
    cells.cluster.down()
    assert run.finished
    cells.namespace.clear()
    del value
    until(lambda: gc.collect() >= 0 and kept() is None)


@contextlib.contextmanager
def ctrl_c(*events: threading.Event) -> Iterator[None]:
    """Press Ctrl-C at each of these events."""

    def press() -> None:
        for event in events:
            event.wait()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    yield
    pressing.join()


def test_what_was_begun_is_ended_however_often_the_user_presses_ctrl_c(new, monkeypatch) -> None:
    cluster = new(nodes=1, framework=False).cluster
    launches, ends, goes_on = threading.Event(), threading.Event(), threading.Event()
    usual = lifecycle.end

    async def launch(*args: object) -> list[object]:
        launches.set()
        await asyncio.Event().wait()
        return []

    async def end(*args: Any, **options: Any) -> list[str]:
        ends.set()
        await asyncio.to_thread(goes_on.wait)
        return await usual(*args, **options)

    monkeypatch.setattr(Local, "launch", launch)
    monkeypatch.setattr(lifecycle, "end", end)
    spec, runtime_env = assemble(ClusterSpec(name="stopped-twice", nodes=1), [])
    with ctrl_c(launches, ends), pytest.raises(event_loop.StillCleaningUp):
        Cluster.start(spec, Local(), runtime_env)
    ends.clear()
    with ctrl_c(ends), pytest.raises(KeyboardInterrupt):
        cluster.down()
    assert {registry.find(name) is None for name in ("stopped-twice", cluster.name)} == {False}
    goes_on.set()
    until(lambda: registry.find("stopped-twice") is None and registry.find(cluster.name) is None)


def test_down_leaves_nothing(new) -> None:
    cells = new(framework=False)
    processes = everything(cells)
    row = registry.find(cells.cluster.name).machines[0]
    assert len(processes) == 6
    cells.cluster.down()
    assert_gone(processes)
    assert not Path(row["folder"]).exists()
    assert not Path(row["blobs"]).exists()
    assert registry.find(cells.cluster.name) is None


def test_a_cluster_ends_though_nobody_can_be_told_what_it_waits_for(new) -> None:
    cells = new(nodes=2, provider=Local(machines=2), framework=False)
    agent = agent_of(cells, 1)
    agent.suspend()

    def unread(text: str) -> None:
        raise BrokenPipeError

    cells.cluster.down(unread)
    assert cells.cluster.name not in [row.name for row in registry.rows()]


def test_what_ranks_started_ends_too(new) -> None:
    cells = new(nodes=1, framework=False)
    cells.run(
        "import subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)"
    )
    [child] = cells.ask("child.pid")
    process = psutil.Process(child)
    cells.cluster.down()
    assert_gone([process])


def test_a_restarted_rank_leaves_and_what_it_started_ends_but_not_what_others_started(
    new, tmp_path: Path
) -> None:
    cells = new(nodes=2, framework=False)
    cells.run(
        "import atexit, pathlib, subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"atexit.register(pathlib.Path({str(tmp_path)!r}).joinpath(str(child.pid)).touch)"
    )
    first, second = map(psutil.Process, cells.ask("child.pid"))
    cells.cluster.restart([0])
    assert_gone([first])
    assert second.is_running()
    assert [path.name for path in tmp_path.iterdir()] == [str(first.pid)]


def test_what_a_rank_has_forked_into_sessions_of_their_own_ends_with_it(new) -> None:
    cells = new(nodes=2, framework=False)
    cells.run(
        "import os, signal, warnings\n"
        # Python 3.12 warns of forks beside threads.
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "def daemon(prints):\n"
        "    ours, theirs = os.pipe()\n"
        "    if not (child := os.fork()):\n"
        "        os.setsid()\n"
        "        if pid := os.fork(): os.write(theirs, str(pid).encode()); os._exit(0)\n"
        "        if not prints:\n"
        "            for fd in (0, 1, 2): os.dup2(os.open(os.devnull, os.O_RDWR), fd)\n"
        "        while True: signal.pause()\n"
        "    os.waitpid(child, 0)\n"
        "    return int(os.read(ours, 100))\n"
        "daemons = [daemon(prints) for prints in (True, False)]"
    )
    first, second = ([*map(psutil.Process, pids)] for pids in cells.ask("daemons"))
    cells.cluster.restart([0])
    assert_gone(first)
    assert all(each.is_running() for each in second)
    cells.cluster.down()
    assert_gone(second)


def test_a_rank_whose_working_folder_is_gone_begins_elsewhere_and_says_so(
    new, tmp_path: Path, monkeypatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        cells = new(nodes=2, framework=False)
    cells.run("import os\nkept = 1")
    folder.rmdir()
    cells.cluster.restart([0])
    # A cell takes it to the folder of the notebook, which is another one by now.
    assert cells.ask("__import__('os').getcwd()", ranks=[0]) == [str(Path.cwd())]
    log = cells.cluster.log(0, tail=10).data.decode()
    assert f"The working folder {folder} is gone, and this rank begins in {Path.home()}: " in log
    assert cells.ask("kept", ranks=[1]) == [1]


def test_plugins_leave_when_the_cluster_goes_down(tmp_path: Path) -> None:
    note = tmp_path / "left"

    def life(info):
        yield
        import torch.distributed as dist

        note.write_text(str(dist.is_initialized()))

    plugin = sky.Plugin("noting", around_app=life)
    spec = ClusterSpec(name="leaving", nodes=2)
    cluster = Cluster.start(*_started(spec, [plugin, sky.plugins.torch()]))
    cluster.down()
    assert note.read_text() == "False"


@pytest.mark.parametrize("victim", [0, 1])
def test_killing_agent_or_fork_server_ends_everything(new, victim: int) -> None:
    cells = new(framework=False)
    processes = everything(cells)
    row = registry.find(cells.cluster.name).machines[0]
    processes[victim].kill()
    assert_gone(processes)
    run, depths = cells.start("pass"), set()
    run.follow()
    for _ in range(3):
        with pytest.raises(sky.ClusterLost, match="Run the cell again|is gone|is lost") as raised:
            run.check()
        depths.add(len(raised.traceback))
    assert len(depths) == 1, "the error gathers the frames of each time"
    cells.cluster.down()
    assert not Path(row["folder"]).exists()
    assert not Path(row["blobs"]).exists()


def test_the_socket_is_for_this_user_only(cells) -> None:
    folder = Path(registry.find(cells.cluster.name).machines[0]["folder"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "agent.sock").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "spec.json").stat().st_mode) == 0o600


def test_nothing_listens_beyond_loopback(cells) -> None:
    for process in everything(cells):
        for connection in process.net_connections("inet"):
            address = connection.laddr.ip.removeprefix("::ffff:")
            assert address in ("127.0.0.1", "::1"), connection


def test_another_kernel_finds_the_cluster_with_its_variables(new) -> None:
    cells = new(nodes=2)
    cells.run("import torch.distributed as dist\nkept = dist.get_rank() + 5")
    cells.cluster.close()
    script = f"""
import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.providers.local import Local
row = registry.find({cells.cluster.name!r})
_, runtime_env = assemble(sky.ComputePool(nodes=2).spec, [sky.plugins.torch()])
cluster = Cluster.attach(row, Local(), runtime_env)
run = cluster.run(Task((0, 1), code="x = kept", values={{0: ["x"], 1: ["x"]}}))
run.follow()
print(run.values(), cluster.state.generation)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "{0: {'x': 5}, 1: {'x': 6}} 1\n", done.stderr


def test_a_cluster_without_notebook_ends_after_its_grace(new) -> None:
    cells = new(nodes=1, framework=False, provider=Local(grace=0.2))
    processes = everything(cells)
    cells.cluster.close()
    assert_gone(processes)


def test_a_cluster_may_wait_for_its_notebook_for_ever(new) -> None:
    cells = new(nodes=1, framework=False, provider=Local(grace=math.inf))
    row = registry.find(cells.cluster.name)
    assert row is not None and row.grace is None


def test_a_run_keeps_a_cluster_alive_without_notebook(new, tmp_path: Path) -> None:
    cells = new(nodes=1, framework=False, provider=Local(grace=0.2))
    processes = everything(cells)
    done = tmp_path / "done"
    cells.namespace["done"] = str(done)
    go = tmp_path / "go"
    cells.namespace["go"] = str(go)
    cells.start(
        "import os, time\nopen(go + '.seen', 'w').close()\n"
        "while not os.path.exists(go): time.sleep(0.01)\nopen(done, 'w').close()",
        names=["done", "go"],
    )
    wait_for(go.with_name("go.seen"))
    cells.cluster.close()
    # Nobody is connected now, for five times the grace.
    with pytest.raises(psutil.TimeoutExpired):
        processes[0].wait(1)
    go.touch()
    assert_gone(processes)
    assert done.exists()


# The ranks wait for more calls, for somebody to read, and for items.
WAITING = {
    "calls": "calls = map(sky.compute(abs), range(1000))\n"
    "for n in sky.gather(*calls, stream=True) >> pool: killed(n)",
    "values": "values = sky.compute(count)() @ pool\nfor _ in range(40): next(values)",
    "items": "sky.compute(list)(map(killed, count())) >> pool",
}


@pytest.mark.parametrize("waiting", WAITING)
def test_a_killed_notebook_leaves_a_cluster_that_ends_itself(home: Path, waiting: str) -> None:
    script = f"""
import jupyter_sky as sky, os, signal
pool = sky.ComputePool(name="killed", nodes=2, provider=sky.Local(grace=0.2)).__enter__()
from jupyter_sky.cluster.inventory import registry
print(registry.find(pool.cluster.name).machines[0]["pid"], flush=True)
def killed(n): n < 40 or os.kill(os.getpid(), signal.SIGKILL)
def count():
    for n in range(1000): yield n
{WAITING[waiting]}
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    with contextlib.suppress(psutil.NoSuchProcess):  # it is gone already
        assert_gone([psutil.Process(int(done.stdout))])
    # The next one of that name takes the place of what is written of it.
    with sky.ComputePool(name="killed"):
        pass
    assert registry.find("killed") is None


def test_what_ranks_have_of_a_killed_notebook_is_worked_on(home: Path, tmp_path: Path) -> None:
    script = f"""
import jupyter_sky as sky, os, signal, time
pool = sky.ComputePool(nodes=1, provider=sky.Local(grace=0.2)).__enter__()
from jupyter_sky.cluster.inventory import registry
print(registry.find(pool.cluster.name).machines[0]["pid"], flush=True)
@sky.compute
def work(items):
    for n in items:
        open(f"{tmp_path}/begun-{{n}}", "w").close()
        if n:  # the rank has asked for more items by now
            time.sleep(1)
        open(f"{tmp_path}/{{n}}", "w").close()
def items():
    yield from range(2)
    while not os.path.exists("{tmp_path}/begun-1"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
work(items()) >> pool
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    with contextlib.suppress(psutil.NoSuchProcess):  # it is gone already
        assert_gone([psutil.Process(int(done.stdout))])
    assert (tmp_path / "1").exists()


def test_several_agents_are_one_cluster(new) -> None:
    cells = new(nodes=2, provider=Local(machines=2))
    cells.run("import torch, torch.distributed as dist\nrank = dist.get_rank()\nkept = rank")
    cells.run("x = torch.ones(1)\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [2.0] * 2
    with pytest.raises(ValueError):
        cells.run("if rank == 1: raise ValueError\ndist.barrier()")
    assert cells.ask("kept") == [0, 1]


def test_an_idle_cluster_ends_as_a_whole(new) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), idle_timeout=6)
    cells.run("import time")
    folders = [Path(machine["folder"]) for machine in registry.find(cells.cluster.name).machines]
    # What goes on at one node keeps the other up, which has nothing to do.
    cells.run("time.sleep(9)", ranks=[0])
    assert cells.ask("1 + 1") == [2, 2]
    while any(folder.exists() for folder in folders):
        time.sleep(0.01)
    with pytest.raises(sky.ClusterLost, match="has ended itself: nothing ran on it for 6 s"):
        cells.run("pass")


def test_a_cluster_to_which_data_is_on_its_way_is_not_idle(new, monkeypatch) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), idle_timeout=6)
    send = Uploads._send_piece

    async def send_slowly(*piece: Any) -> bool:
        """Take longer for all pieces than the cluster may be idle."""
        await asyncio.sleep(0.7)
        return await send(*piece)

    monkeypatch.setattr(Uploads, "_send_piece", send_slowly)
    monkeypatch.setattr(shared_memory, "LEAST", sys.maxsize)  # as to another computer
    cells.namespace["data"] = os.urandom(5_000_000)
    cells.run("import os\nn = len(data)", names=["data"])
    assert cells.ask("n") == [5_000_000] * 2
    acknowledge = Downloads.acknowledge

    def acknowledge_late(*piece: Any) -> None:
        asyncio.get_running_loop().call_later(2.0, acknowledge, *piece)

    monkeypatch.setattr(Downloads, "acknowledge", acknowledge_late)
    came = cells.run("back = os.urandom(9_000_000)", values={0: ["back"]})
    assert len(came[0]["back"]) == 9_000_000
    assert cells.ask("n") == [5_000_000] * 2


def test_a_cluster_that_new_nodes_are_to_join_is_not_idle(new, monkeypatch) -> None:
    cells = new(nodes=1, framework=False, idle_timeout=6)
    add = Local.add_nodes

    async def add_late(*asked: Any) -> AddedNodes:
        """Take as long as machines that have to be rented."""
        await asyncio.sleep(9)
        return await add(*asked)

    monkeypatch.setattr(Local, "add_nodes", add_late)
    cells.cluster.scale(2)
    assert cells.ask("1 + 1") == [2, 2]


def test_a_stream_that_nobody_reads_on_keeps_no_cluster() -> None:
    @sky.compute
    def count():
        yield from range(100_000)

    with sky.ComputePool(nodes=1, plugins=[], idle_timeout=3) as pool:
        values = count() >> pool
        assert next(values) == 0
        cluster = pool.cluster
        until(lambda: not cluster.alive)
    with pytest.raises(sky.SkyError, match="its run only waited for the notebook for 3 s"):
        list(values)


def test_an_endless_run_that_no_notebook_looks_at_ends_after_its_time(new) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), unattended=2)
    folders = [Path(machine["folder"]) for machine in registry.find(cells.cluster.name).machines]
    cells.run("import time\ntime.sleep(3)")  # as long as a notebook is there it may take its time
    cells.start("print('here', flush=True)\nwhile True: time.sleep(0.1)")
    while "here" not in cells.cluster.snapshot()["output"]["text"]:
        time.sleep(0.01)
    cells.cluster.close()
    while any(folder.exists() for folder in folders):
        time.sleep(0.01)


def test_an_endless_run_that_no_notebook_can_find_any_more_ends(new) -> None:
    cells = new(nodes=1, framework=False)
    processes = everything(cells)
    [machine] = registry.find(cells.cluster.name).machines
    cells.start("print('here', flush=True)\nimport time\nwhile True: time.sleep(0.1)")
    while "here" not in cells.cluster.snapshot()["output"]["text"]:
        time.sleep(0.01)
    cells.cluster.close()
    shutil.rmtree(machine["folder"])  # as with the home of a user who is gone
    assert_gone(processes)


def test_a_node_cannot_end_another_that_a_notebook_is_connected_to(new) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2))
    first, second = cells.cluster._controller.connections
    peers = [second.machine.nodes[0].peer()]
    answer = event_loop.wait(first.request("end_peers", peers=peers))
    assert answer["failed"] == {1: "the peer hung up"}
    assert cells.ask("1 + 1") == [2, 2]


def test_a_missing_framework_is_one_sentence_and_starts_nothing(home: Path) -> None:
    spec = ClusterSpec(name="missing", nodes=1)
    plugin = sky.Plugin("odd", preload=("no_such_module",))
    with pytest.raises(sky.UsageError, match="no_such_module is not installed"):
        Cluster.start(*_started(spec, [plugin]))
    assert registry.find("missing") is None


def test_a_plugin_that_fails_is_named_and_leaves_nothing(home: Path) -> None:
    def broken(info):
        raise OSError("no such disk")
        yield

    before = set(processes_of(home))
    with pytest.raises(sky.SkyError, match="could not join the group: OSError: no such disk"):
        Cluster.start(*_started(ClusterSpec(name="broken"), [sky.Plugin("b", around_app=broken)]))
    # Those of the test before may still end, and a template has its maker's name for a moment.
    until(lambda: before.issuperset(processes_of(home)))
    assert registry.find("broken") is None


def _started(spec: ClusterSpec, plugins: list[sky.Plugin]):
    made, runtime_env = assemble(spec, plugins)
    return made, Local(), runtime_env


def test_a_registry_that_others_can_read_is_made_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "home"
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(folder))
    registry.rows()
    folder.chmod(0o755)
    registry.rows()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "registry.sqlite").stat().st_mode) == 0o600
    # A folder with other things in it may be meant for others: the user decides.
    (folder / "thesis.tex").touch()
    folder.chmod(0o755)
    with pytest.raises(sky.SkyError, match=f"others can read .*: type `chmod 700 {folder}`, or"):
        registry.rows()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_folder_that_others_can_change_is_refused(tmp_path: Path) -> None:
    script = "import jupyter_sky as sky\nsky.ComputePool(nodes=1).__enter__()"
    tmp_path.chmod(0o777)
    environment = {**os.environ, "JUPYTER_SKY_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert "can be changed by somebody else" in done.stderr


def test_clusters_that_ended_long_ago_are_forgotten_when_another_starts(
    new, tmp_path: Path
) -> None:
    def ended(identity: str, days: float, folder: Path, provider: str = "local") -> None:
        registry.record(identity, identity, provider, {"nodes": 1})
        machine = {"folder": str(folder), "blobs": str(tmp_path / "none"), "nodes": []}
        registry.record_machines(identity, [machine])
        by = {"time": time.time() - days * 24 * 3600, "is_idle": True}
        registry.change(identity, {"ends_by": by})

    gone = tmp_path / "gone"
    ended("000000a0", 8, gone)
    ended("000000a1", 6, gone)
    ended("000000a2", 8, tmp_path)
    ended("000000a3", 8, gone, provider="ssh")
    new(nodes=1, framework=False)
    there = {row.id for row in registry.rows()}
    for identity in ("000000a1", "000000a2", "000000a3"):
        assert identity in there
        registry.remove(identity)
    assert "000000a0" not in there
