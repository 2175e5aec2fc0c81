"""Nodes that are lost: others take their place if asked to, and the ranks that are left go on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control import recovery, scaling
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.cluster.inventory import registry, turns
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.cluster.runtime_env import RuntimeEnv, Timeouts
from jupyter_sky.cluster.state import ClusterPhase, RankPhase, running
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.events import RankExited
from tests.cluster.conftest import Cells
from tests.cluster.control.test_scaling import assert_is_whole, prepare, ranks_on_this_machine
from tests.conftest import processes_of
from tests.faults.parts import attach
from tests.waiting import PATIENCE, until


def kill_agent(cells: Cells, machine: int) -> None:
    os.kill(registry.find(cells.cluster.name).machines[machine]["pid"], signal.SIGKILL)


def lose_node(cells: Cells, *machines: int) -> None:
    """Kill agents, and have a cell find out."""
    for machine in machines:
        kill_agent(cells, machine)
    with contextlib.suppress(RankLost):
        cells.run("pass")


def test_another_node_takes_the_place_of_one_that_is_lost(new) -> None:
    cells = new(nodes=3, provider=Local(machines=3), replace=True)
    for victim, keep in ((1, [0, None, 2]), (0, [None, 1, 2])):
        prepare(cells)
        lose_node(cells, victim)
        assert_is_whole(cells, 3, keep=keep)
        assert ranks_on_this_machine(cells) == 3

    # One that is lost in a collective ends the run at once.
    prepare(cells)
    run = cells.start(
        "import time, torch, torch.distributed as dist\nprint('here', flush=True)\n"
        "if kept == 0: dist.all_reduce(torch.ones(1))\nelse: time.sleep(600)"
    )
    killing = itertools.count()  # a line may come in pieces
    run.follow(lambda event: next(killing) or kill_agent(cells, 1))
    with pytest.raises(RankLost, match="rank 1 is lost: the agent of node 1 ended"):
        run.values()
    assert_is_whole(cells, 3, keep=[0, None, 2])


@pytest.mark.parametrize("visits", [True, False])
def test_who_comes_while_a_node_is_lost_takes_nothing_away(new, monkeypatch, visits: bool) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    prepare(cells)
    add, has_come = Local.add_nodes, threading.Event()

    async def add_then(*asked: Any) -> AddedNodes:
        await asyncio.to_thread(has_come.wait, PATIENCE)
        return await add(*asked)

    monkeypatch.setattr(Local, "add_nodes", add_then)
    row = registry.find(cells.cluster.name)
    agent = psutil.Process(row.machines[1]["pid"])
    agent.kill()
    agent.wait()
    with pytest.raises(sky.SkyError, match="has lost a node, which the notebook that uses it"):
        Cluster.attach(row, Local(), RuntimeEnv(life={}), visits=visits)
    has_come.set()
    assert_is_whole(cells, 2, keep=[0, None], framework=False)


def successor_without_node_1(cells: Cells) -> Cells:
    """Return the next notebook's cluster, which lost a node while no notebook was there."""
    row = registry.find(cells.cluster.name)
    cells.cluster.close()
    agent = psutil.Process(row.machines[1]["pid"])
    agent.kill()
    agent.wait()
    return attach(row.name, Local(machines=2))


def test_a_node_that_was_lost_while_no_notebook_was_there_is_replaced_by_the_next(new) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    prepare(cells)
    successor = successor_without_node_1(cells)
    try:
        assert_is_whole(successor, 2, keep=[0, None], framework=False)
    finally:
        successor.cluster.down()


def test_a_run_that_has_lost_a_node_while_no_notebook_was_there_says_so(
    new, tmp_path, monkeypatch
) -> None:
    replace_lost, were_busy = recovery.replace_lost, list[bool]()

    async def note(controller: Controller) -> None:
        were_busy.append(bool(controller.state.busy_runs))
        await replace_lost(controller)

    monkeypatch.setattr(recovery, "replace_lost", note)
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    prepare(cells)
    code = f"""open(f'{tmp_path}/{{kept}}', 'w').close()
import os, time
while not os.path.exists('{tmp_path}/end'): time.sleep(0.01)"""
    cells.start(code)
    until(lambda: len(list(tmp_path.glob("[01]"))) == 2)
    successor = successor_without_node_1(cells)
    try:
        unseen = successor.cluster.pop_unseen_run()
        for _ in range(100):  # it could begin to replace the node, while rank 0 goes on
            event_loop.wait(asyncio.sleep(0))
        (tmp_path / "end").touch()
        unseen.follow(lambda event: None)
        with pytest.raises(RankLost, match="rank 1 is lost: the agent of node 1 ended"):
            unseen.values()
        assert_is_whole(successor, 2, keep=[0, None], framework=False)
        assert were_busy == [False]
    finally:
        successor.cluster.down()


def test_a_cluster_is_made_whole_between_runs_also_of_other_notebooks(new, monkeypatch) -> None:
    cells, were_busy = new(nodes=1, framework=False), list[bool]()
    scheduler, controller = cells.cluster._scheduler, cells.cluster._controller

    async def note(controller: Controller) -> None:
        were_busy.append(bool(controller.state.busy_runs))

    async def go_on() -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    async def scenario() -> None:
        idle = controller.state
        async with scheduler._turn:
            making = asyncio.ensure_future(scheduler._make_whole_in_turn())
            await go_on()
            controller.state = running(idle, [0], "theirs")  # it begins while it waits for its turn
        await go_on()
        controller.state = idle
        controller.wake()
        await making

    monkeypatch.setattr(recovery, "make_whole", note)
    event_loop.wait(scenario())
    monkeypatch.undo()
    assert were_busy == [False]


def test_who_only_visits_leaves_it_to_the_notebook_to_replace_a_node(new, monkeypatch) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    prepare(cells)
    visitor = Cluster.visit(registry.find(cells.cluster.name), Local())
    add, has_heard = Local.add_nodes, threading.Event()
    repairs: list[Controller] = []

    async def add_then(*asked: Any) -> AddedNodes:
        await asyncio.to_thread(has_heard.wait, PATIENCE)
        return await add(*asked)

    async def replace_lost(controller: Controller) -> None:
        repairs.append(controller)
        await replace(controller)

    replace = recovery.replace_lost
    monkeypatch.setattr(Local, "add_nodes", add_then)
    monkeypatch.setattr(recovery, "replace_lost", replace_lost)
    kill_agent(cells, 1)
    until(lambda: visitor.state.ranks[1].phase is RankPhase.GONE)
    has_heard.set()
    assert_is_whole(cells, 2, keep=[0, None], framework=False)
    assert repairs == [cells.cluster._controller]
    assert visitor.alive
    visitor.log(0)
    visitor.close()


def test_a_cluster_that_waits_for_a_replacement_is_not_idle(new, monkeypatch) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True, idle_timeout=6)
    prepare(cells)
    add = Local.add_nodes

    async def add_late(*asked: Any) -> AddedNodes:
        """Take as long as a queue does."""
        await asyncio.sleep(9)
        return await add(*asked)

    monkeypatch.setattr(Local, "add_nodes", add_late)
    lose_node(cells, 1)
    assert_is_whole(cells, 2, keep=[0, None], framework=False)


def test_of_two_kernels_only_one_adds_nodes(new, monkeypatch) -> None:
    """Each would pay for machines of which the other, and the registry, know nothing."""
    monkeypatch.setattr(turns, "LOOK_EVERY", 0.01)
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    cluster, looked = cells.cluster, threading.Event()
    prepare(cells)

    def begin(identity: str) -> bool:
        looked.set()
        return usual(identity)

    usual = turns.begin
    monkeypatch.setattr(turns, "begin", begin)
    other = {**processes.describe(os.getppid()), "since": time.time()}
    registry.change(cluster.id, {"grower": other})
    with pytest.raises(sky.SkyError, match="stays with 2 nodes: another notebook is adding or"):
        cluster.scale(3)
    looked.clear()
    before = registry.find(cluster.name).machines
    kill_agent(cells, 1)
    assert looked.wait(10)
    assert registry.find(cluster.name).machines == before
    # It has replaced the node, which this kernel learns of as of any change by another.
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(cells.run, "pass")
        until(lambda: cluster.snapshot()["run"] or waiting.done())
        cluster._controller.formation.outdated = True
        registry.change(cluster.id, {"grower": None})
        with pytest.raises(sky.SkyError, match="was changed by another kernel: run the cell agai"):
            waiting.result()
    assert registry.find(cluster.name).machines == before
    # It has not, and is gone.
    cluster._controller.formation.outdated = False
    assert_is_whole(cells, 2, keep=[0, None], framework=False)


def test_what_is_added_while_a_node_is_replaced_is_not_forgotten(new, monkeypatch) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    add, begins, is_set = Local.add_nodes, threading.Event(), threading.Event()
    starts: list[dict[str, str]] = []

    async def add_then(self: Local, running: RunningCluster, *more: Any) -> AddedNodes:
        starts.append(dict(running.spec.image.env))
        begins.set()
        await asyncio.to_thread(is_set.wait, PATIENCE)
        return await add(self, running, *more)

    monkeypatch.setattr(Local, "add_nodes", add_then)
    kill_agent(cells, 1)
    assert begins.wait(PATIENCE)
    cells.cluster.variables.renew({"ADDED": "meanwhile"})
    is_set.set()
    cells.run("pass")
    lose_node(cells, 1)
    assert_is_whole(cells, 2, keep=[None, None], framework=False)
    assert starts == [{}, {"ADDED": "meanwhile"}]


def test_nothing_is_added_to_a_cluster_that_is_lost_meanwhile(new, monkeypatch) -> None:
    """As where machines that another notebook stops go down one after the other."""
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    begins, ends = threading.Event(), threading.Event()

    async def add(*asked: Any) -> AddedNodes:
        """Take as long as a queue does."""
        begins.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ends.set()

    monkeypatch.setattr(Local, "add_nodes", add)
    kill_agent(cells, 1)
    assert begins.wait(PATIENCE)
    kill_agent(cells, 0)
    with pytest.raises(sky.ClusterLost, match="is lost: the agent of rank 0 ended"):
        cells.run("pass")
    assert ends.wait(PATIENCE)


def test_several_nodes_may_be_lost_at_once(new) -> None:
    cells = new(nodes=4, framework=False, provider=Local(machines=4), replace=True)
    prepare(cells)
    lose_node(cells, 1, 3)
    assert_is_whole(cells, 4, keep=[0, None, 2, None], framework=False)


def test_a_node_that_is_lost_while_one_of_its_ranks_comes_again_is_replaced(new) -> None:
    """As where a machine goes down: its ranks end first, and its agent a moment later."""
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    prepare(cells)
    controller = cells.cluster._controller
    exited = RankExited(1, cells.cluster.state.ranks[1].pid, "it was killed", None, "")
    event_loop.call(controller.on_event, controller.connection(1), exited)
    run = cells.start("pass")
    until(cells.cluster._scheduler._turn.locked)
    kill_agent(cells, 1)
    run.follow()
    run.check()
    assert cells.ask("globals().get('kept')") == [0, None]


def test_who_waits_is_told(new) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    prepare(cells)
    notes: set[str] = set()
    cells.cluster.listen(lambda: notes.add(cells.cluster.snapshot()["cluster"]["note"]))
    lose_node(cells, 1)
    cells.run("pass")
    assert any("replacing node 1" in note for note in notes)
    assert cells.cluster.snapshot()["cluster"]["note"] == ""


def test_who_goes_on_is_told_that_a_lost_machine_may_still_cost_money(
    new, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(self: Local, machines: object) -> None:
        raise sky.SkyError("i-1 may still be there and cost money.")

    monkeypatch.setattr(Local, "release_machines", refuse)
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    lose_node(cells, 1)
    cells.run("pass")  # the one before may have begun when the loss was not noticed yet
    told = capsys.readouterr().err
    assert "took the place of node 1, but i-1 may still be there and cost money." in told


def test_a_cluster_of_which_nothing_is_left_is_lost(new) -> None:
    cells = new(nodes=2, framework=False, replace=True)
    run = cells.start("import time\nprint('here', flush=True)\ntime.sleep(600)")
    killing = itertools.count()
    run.follow(lambda event: next(killing) or kill_agent(cells, 0))
    with pytest.raises(sky.ClusterLost, match="Run the cell again"):
        run.values()
    shown = cells.cluster.snapshot(run=run.id)
    assert [rank["outcome"] for rank in shown["ranks"]] == ["lost", "lost"]


_LOST = "is lost: the agent of rank 1 ended.*`%sky restart`.*`--replace`"


def test_without_the_option_the_sentence_says_what_can_be_done(new) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2))
    kill_agent(cells, 1)
    with pytest.raises(sky.ClusterLost, match=_LOST):
        cells.run("pass")


def test_what_runs_on_other_nodes_is_stopped_with_the_cluster(new, tmp_path: Path) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2))
    run = cells.start(
        "import os, pathlib, time\n"
        f"folder = pathlib.Path('{tmp_path}')\n"
        "try:\n    (folder / str(os.getpid())).touch()\n    time.sleep(600)\n"
        "finally:\n    (folder / f'stopped-{os.getpid()}').touch()"
    )
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    cells.cluster.log(1)  # its agent has answered what it was asked before
    kill_agent(cells, 1)
    run.follow(lambda event: None)
    with pytest.raises(sky.ClusterLost, match=_LOST):
        run.values()
    until((tmp_path / f"stopped-{cells.cluster.state.ranks[0].pid}").exists)


def test_who_attaches_while_a_node_is_lost_replaces_none_without_the_option(
    new, monkeypatch
) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2))
    row, lost, usual = registry.find(cells.cluster.name), threading.Event(), Controller.mark_lost

    def note(controller: Controller, *reason: Any) -> None:
        usual(controller, *reason)
        lost.set()

    async def lose(*asked: Any) -> None:
        os.kill(row.machines[1]["pid"], signal.SIGKILL)
        assert await asyncio.to_thread(lost.wait, PATIENCE)

    cells.cluster.close()
    monkeypatch.setattr(Controller, "mark_lost", note)
    monkeypatch.setattr(scaling, "finish_interrupted", lose)
    with pytest.raises(sky.SkyError, match=r"does not answer .*the agent of rank 1 ended"):
        Cluster.attach(row, Local(), RuntimeEnv(life={}))


@pytest.mark.parametrize("action", ["restart", "scale"])
def test_what_waits_for_a_lost_node_says_the_same(new, action: str) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=3))
    agent = psutil.Process(registry.find(cells.cluster.name).machines[1]["pid"])
    agent.suspend()
    threading.Timer(0.2, agent.kill).start()
    with pytest.raises(sky.ClusterLost, match=_LOST):
        cells.cluster.restart() if action == "restart" else cells.cluster.scale(3)


def test_a_start_that_loses_a_node_says_so_at_once(home: Path, monkeypatch, tmp_path: Path) -> None:
    """Nothing replaces nodes of a cluster that is not there yet."""
    (tmp_path / "slowly_imported.py").write_text("import time\ntime.sleep(2)")
    monkeypatch.syspath_prepend(tmp_path)
    slow = sky.Plugin("slow", preload=("slowly_imported",))
    made, runtime_env = assemble(ClusterSpec(name="lost", nodes=2, replace=True), [slow])
    before = processes_of(home)

    def lose(step: object) -> None:
        if "importing" in str(step):
            words = {each: each.info["cmdline"] for each in processes_of(home)}
            [agent] = [
                each
                for each, said in words.items()
                if "jupyter_sky.node" in said
                and said[4].rstrip("/").endswith("-1")
                and each not in before
            ]
            agent.kill()

    provider, limits = Local(machines=2), Timeouts(start=20)
    with pytest.raises(sky.ClusterLost, match="lost is lost: the agent of rank 1 ended"):
        Cluster.start(made, provider, runtime_env, lose, limits)
    assert registry.find("lost") is None


def test_a_cluster_that_is_being_repaired_can_be_ended(new) -> None:
    cells = new(nodes=2, framework=False, provider=Local(machines=2), replace=True)
    row = registry.find(cells.cluster.name)
    repairing = threading.Event()

    def look() -> None:
        if "replacing node 1" in cells.cluster.snapshot()["cluster"]["note"]:
            repairing.set()

    cells.cluster.listen(look)
    kill_agent(cells, 1)
    assert repairing.wait(30)
    cells.cluster.down()
    assert registry.find(row.name) is None
    # What a killed agent had started ends by itself, a moment later.
    until(lambda: not processes_of(Path(row.id)))


def test_nodes_that_were_to_join_a_lost_cluster_are_given_back_before_it_is_down(
    new, monkeypatch
) -> None:
    """However often that is cancelled: as it is lost, as the cell goes on, and as it ends."""
    cells = new(nodes=3, framework=False, provider=Local(machines=3), replace=True)
    controller = cells.cluster._controller
    rents, ends, seen = threading.Event(), threading.Event(), list[str]()

    async def rent(*asked: Any) -> AddedNodes:
        try:
            rents.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.to_thread(ends.wait, PATIENCE)
            seen.append("given back")
            raise
        raise AssertionError

    monkeypatch.setattr(Local, "add_nodes", rent)
    kill_agent(cells, 1)
    waiting = event_loop.submit(recovery.make_whole(controller))
    assert rents.wait(PATIENCE)
    event_loop.call(controller.mark_lost, "both are lost")
    waiting.cancel()
    with ThreadPoolExecutor() as pool:
        down = pool.submit(cells.cluster.down)
        until(lambda: controller.state.phase is ClusterPhase.DOWN)
        ends.set()
        down.result(PATIENCE)
    assert seen == ["given back"]


def test_a_rank_that_is_lost_while_the_group_forms_comes_again(new_with, tmp_path: Path) -> None:
    """The cell begins once it is there; a rank that is lost each time is an error."""
    deaths = tmp_path / "deaths"
    deaths.mkdir()

    def fragile(info):
        if info.rank == 1 and (left := list(deaths.iterdir())):
            left[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        yield

    cells = new_with([sky.Plugin("fragile", around_app=fragile)], nodes=2)
    lose = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    for times in (2, 9):
        for number in range(times):
            (deaths / str(number)).touch()
        with pytest.raises(RankLost):
            cells.run(lose, ranks=[0])
        # The group is formed at once, and again for the next cell.
        until(lambda times=times: len(list(deaths.iterdir())) < times)
        if times == 2:
            assert cells.ask("1 + 1") == [2, 2]
    with pytest.raises(sky.SkyError, match="rank 1 (could not join the group|no longer starts)"):
        cells.run("pass")


def test_a_rank_that_leaves_a_broken_formation_late_does_not_spoil_the_next(
    new, tmp_path: Path
) -> None:
    leaving, now = tmp_path / "leaving", tmp_path / "now"

    def slow(info):
        if info.rank == 1 and info.generation == 2:
            time.sleep(600)  # as in a rendezvous to which nobody else comes
        yield
        if info.rank == 1:
            leaving.touch()
            while not now.exists():
                time.sleep(0.01)

    cells = new(2, framework=sky.Plugin("slow", around_app=slow), stop=0.3)
    cluster = cells.cluster

    def lose_first() -> None:
        before = cluster.state.ranks[0].pid
        os.kill(before, signal.SIGKILL)
        until(lambda: cluster.state.ranks[0].pid not in (None, before))

    lose_first()
    run = cells.start("pass")
    until(leaving.exists)
    lose_first()
    # The formation is given up while rank 1 is still leaving the group before it.
    until(lambda: cluster.state.generation == 3)
    now.touch()
    run.follow()
    assert run.values() == {}
