"""A registry that cannot be used: one sentence says so, and what costs money ends all the same."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sqlite3
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky import paths
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.cost_meter import ClusterCost, CostMeter
from jupyter_sky.cluster.inventory import owed_runs, registry, row_updates
from jupyter_sky.cluster.inventory.joining_cost import JoiningCost
from jupyter_sky.cluster.inventory.machines import find_broken
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.cluster.inventory.storage.row import EndsBy
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.paths import home
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.tasks import blocking
from tests.cluster.cells import Cells
from tests.conftest import processes_of
from tests.faults.limits import descriptors
from tests.faults.parts import agent_of
from tests.waiting import until


class Rented(Local):
    """Nodes of this machine that have to be given back."""

    cloud = "this machine"

    def __init__(self, counts_hours: bool = False) -> None:
        super().__init__()
        self.counts_hours = counts_hours
        self.given_back: list[str] = []
        self.ended: float | None = None

    def location(self) -> str:
        return "here"

    async def release_cluster(self, identity: str, location: str | None, progress) -> None:
        self.given_back.append(identity)

    async def ended_at(self, machines) -> list[float | None]:
        return [self.ended] * len(machines)

    async def list_resources(self, everywhere: bool = False) -> tuple[list, list[str]]:
        return [], []

    async def release_strays(self, identity: str, location: str, instances) -> None: ...

    async def remove_unused(self) -> list[str]:
        return []


class NotStopped(Rented):
    """Such nodes, whose provider refuses to stop them when they have been in use meanwhile."""

    def check_stop(self, machines) -> None: ...

    async def storage_price(self, machines) -> float | None: ...

    async def money_left(self, machines) -> float | None: ...

    async def stop_machines(self, machines, autostop: bool) -> None:
        since = await blocking(ends_by, "refused")
        await blocking(until, lambda: ends_by("refused").time > since.time + 0.1)
        raise sky.SkyError("it may not be stopped.")

    async def start_machines(self, *given) -> list: ...

    async def stopped_at(self, machines) -> list[float | None]:
        return [None] * len(machines)


def ends_by(name: str) -> EndsBy:
    row = registry.find(name)
    assert row is not None
    return row.ends_by


def test_down_gives_machines_back_when_the_registry_cannot_be_written() -> None:
    provider = Rented()
    spec, runtime_env = assemble(ClusterSpec(name="rented", nodes=1), [])
    cluster = Cluster.start(spec, provider, runtime_env, timeouts=Timeouts())
    until(lambda: ends_by("rented").is_idle)  # nobody writes to it now
    file = home() / "registry.sqlite"
    usual = file.read_bytes()
    file.write_bytes(b"no database, and longer than its header" * 100)
    try:
        with pytest.raises(sky.SkyError, match="rented was ended, but it is still in the registry"):
            cluster.down()
    finally:
        file.write_bytes(usual)
    assert provider.given_back == [cluster.id]
    until(lambda: not processes_of(Path(cluster.id)))  # one may still be about to be gone
    row = registry.find("rented")
    assert row is not None
    assert Cluster.remove(row, provider) == []
    assert registry.find("rented") is None


class Refusing(Local):
    """Nodes that do not come."""

    async def add_nodes(self, running, progress) -> AddedNodes:
        raise sky.SkyError("gpu2: it does not let you in.")


def test_why_nodes_do_not_come_is_said_where_the_registry_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
    (tmp_path / "registry.sqlite").write_bytes(b"no database, and longer than its header" * 100)
    running = RunningCluster(ClusterSpec("grows", nodes=2), "0123abcd", [])
    joining = JoiningCost(running, ClusterCost(CostMeter(0.0, 0.0), False), lambda text: None)
    with pytest.raises(sky.SkyError, match="gpu2: it does not let you in"):
        asyncio.run(joining.add_nodes(Refusing()))


def test_when_machines_end_is_kept_that_could_not_be_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
    monkeypatch.setattr(row_updates, "_SIGN_EVERY", 0.01)
    spec, runtime_env = assemble(ClusterSpec(name="refused", nodes=1), [])
    cluster = Cluster.start(spec, NotStopped(), runtime_env, timeouts=Timeouts())
    until(lambda: ends_by("refused").is_idle)
    with pytest.raises(sky.SkyError, match="it may not be stopped"):
        cluster.power.stop(cluster.power.check_stop())
    since = ends_by("refused").time
    until(lambda: ends_by("refused").time > since + 0.1)
    cluster.down()


def test_what_is_rented_costs_until_its_end_and_not_until_that_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
    provider = Rented(counts_hours=True)
    spec, runtime_env = assemble(ClusterSpec(name="forgotten", nodes=1), [])
    cluster = Cluster.start(spec, provider, runtime_env, timeouts=Timeouts())

    until(lambda: ends_by("forgotten").is_idle)
    soon = ends_by("forgotten").time
    cells = Cells(cluster)
    cells.start("import time; time.sleep(600)")
    until(lambda: not ends_by("forgotten").is_idle)
    assert ends_by("forgotten").time > soon + 86400, "a run may go on for days without a notebook"
    row = registry.find("forgotten")
    assert row is not None
    provider.ended = time.time()
    agent_of(cells).kill()
    # The notebook shows no more of it, either.
    hour = cluster._controller.cost.rate.amount or 0.0
    cost = hour * (provider.ended - row.meter.since) / 3600
    until(lambda: cluster.snapshot()["cluster"]["cost"] == pytest.approx(cost))
    cluster.down()
    [spent] = [each for each in registry.all_spent() if each.name == "forgotten"]
    assert (spent.since, spent.until) == (row.meter.since, provider.ended)


def test_a_registry_that_is_held_does_not_hold_up_the_loop(new, monkeypatch) -> None:
    monkeypatch.setattr(registry, "WAIT", 60.0)  # longer than it is held here
    cells = new(1, framework=False)
    agent = agent_of(cells)
    ended = threading.Event()
    holder = sqlite3.connect(home() / "registry.sqlite")
    holder.execute("BEGIN EXCLUSIVE")

    def end() -> None:
        cells.cluster.down()
        ended.set()

    thread = threading.Thread(target=end)
    thread.start()
    agent.wait(60)
    for _ in range(20):  # `down` waits for the registry by now, or is about to
        event_loop.wait(asyncio.sleep(0.01))
    assert not ended.is_set()
    holder.rollback()
    holder.close()
    thread.join()
    assert ended.is_set()
    assert registry.find(cells.cluster.name) is None


def test_nothing_may_block_the_loop() -> None:
    async def read() -> None:
        registry.rows()

    with pytest.raises(RuntimeError, match="use it in a thread"):
        event_loop.wait(read())


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.write_bytes(b"no database" * 100), "move it away, a new one is made"),
        (
            lambda file: sqlite3.connect(file).execute("CREATE TABLE clusters (newer TEXT)"),
            "no newer jupyter_sky made it",
        ),
    ],
    ids=["damaged", "newer"],
)
def test_the_sentence_says_what_to_do(monkeypatch, tmp_path: Path, spoil, said: str) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
    spoil(home() / "registry.sqlite")
    with pytest.raises(sky.SkyError, match=said) as caught:
        registry.rows()
    assert str(home()) in str(caught.value)


def test_a_notebook_that_may_open_no_more_files_is_told_so() -> None:
    with (
        descriptors(psutil.Process(), 3),
        pytest.raises(registry.RegistryError, match="as many files open as may be, close some"),
    ):
        registry.rows()


def test_what_a_run_was_asked_for_is_known_while_it_is_recorded_that_it_came(monkeypatch) -> None:
    """Who attaches at that moment, or after a disk was full then, unpickles the names recorded."""
    owed_runs.record("c1", "r1", owed_runs.OwedRun("a cell", {0: ["x"]}))

    def write_a_part(path: Path, *place: Any, **options: Any) -> IO[str]:
        file = usual(path, *place, **options)
        file.write("{")
        file.flush()
        assert owed_runs.find("c1", "r1").asked == {0: ["x"]}
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    usual = open
    with monkeypatch.context() as full:
        full.setattr(paths, "open", write_a_part, raising=False)
        owed_runs.settle("c1", "r1")
    assert owed_runs.find("c1", "r1").asked == {0: ["x"]}
    assert owed_runs.owes("c1", "r1")
    owed_runs.settle("c1", "r1")
    assert not owed_runs.owes("c1", "r1")
    owed_runs.forget("c1")


def test_a_damaged_record_of_a_run_is_that_of_none() -> None:
    owed_runs.record("c2", "r1", owed_runs.OwedRun("a cell", {0: ["x"]}, waits=True))
    (whole,) = (paths.home() / "asked" / "c2").iterdir()
    whole.with_stem("r2").write_text('{"asked": {}, "waits": true}')
    whole.with_stem("r3").write_text("[]")
    assert owed_runs.count_waiting("c2") == 1
    owed_runs.forget("c2")


def test_a_killed_kernel_that_nobody_waits_for_starts_nothing_any_more() -> None:
    """Where the first process of a container waits for no orphans, they are zombies for ever."""
    kernel = subprocess.Popen(["sleep", "600"])
    starter = {"computer": socket.gethostname(), "pid": kernel.pid}
    registry.record("0000000f", "orphan", "local", {"nodes": 1, "starter": starter})
    try:
        assert is_starting("orphan")
        kernel.kill()
        until(lambda: psutil.Process(kernel.pid).status() == psutil.STATUS_ZOMBIE)
        assert not is_starting("orphan")
    finally:
        kernel.wait()
        registry.remove("0000000f")


def test_a_clock_that_is_set_makes_no_dead_kernel_of_one_that_starts_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A virtual machine that wakes up sets it by hours; `gc` would end what is being started."""
    kernel = subprocess.Popen(["sleep", "600"])
    row = {"nodes": 1, "starter": processes.describe(kernel.pid)}
    registry.record("0000000e", "slow", "local", row)
    began = psutil.Process(kernel.pid).create_time()
    # What the system says of the time of day at which it began changes with the clock.
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: began + 3 * 3600)
    try:
        assert is_starting("slow")
        # Another process that has got its id is not the one that starts it.
        other = {**row["starter"], "mark": processes.describe()["mark"]}
        registry.change("0000000e", {"starter": other})
        assert not is_starting("slow")
    finally:
        kernel.kill()
        kernel.wait()
        registry.remove("0000000e")


def is_starting(name: str) -> bool:
    row = registry.find(name)
    assert row is not None
    return row.is_starting


@pytest.mark.parametrize(
    ("column", "content"),
    [
        ("spec", '{"nodes": 1, "meter": 5}'),
        ("machines", '[{"nodes": 5}]'),
        ("machines", '[{"nodes": [{"ranks": null}]}]'),
    ],
)
def test_a_row_that_is_damaged_keeps_no_other_away(column: str, content: str) -> None:
    for identity in ("0000000d", "0000000e"):
        registry.record(identity, f"c-{identity}", "local", {"nodes": 1})
    with registry.opened() as database:
        database.execute(f"UPDATE clusters SET {column} = ? WHERE id = '0000000d'", (content,))
    assert [row.id for row in registry.rows()] == ["0000000e"]
    assert find_broken("c-0000000d")
    assert registry.all_spent() == []
    for identity in ("0000000d", "0000000e"):
        registry.remove(identity)
