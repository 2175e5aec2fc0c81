"""Nodes come and go while a cluster is up: what ranks keep, and what Stop and losses leave."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import itertools
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.providers.local import Local
from jupyter_sky.transport import event_loop
from tests.cluster.conftest import Cells, start, taken_up
from tests.cluster.control.test_lifecycle import everything
from tests.conftest import kill_processes_of, processes_of
from tests.forks import forks_with
from tests.node_processes import fork_server_of
from tests.waiting import until

IMPORTS = "import json, os, jupyter_sky as sky"
IN_A_GROUP = """
import torch, torch.distributed as dist
x = torch.ones(1)
if dist.is_initialized(): dist.all_reduce(x)
"""


def prepare(cells: Cells) -> None:
    """Let each rank make a value that no other rank has."""
    cells.run(f"{IMPORTS}\nkept = sky.instance_info().rank")


def assert_is_whole(
    cells: Cells, nodes: int, keep: Sequence[int | None], framework: bool = True
) -> None:
    """Check that a cluster has so many nodes of one rank, in one group, and what they kept."""
    cluster = cells.cluster
    everyone = list(range(nodes))
    cells.run(IMPORTS)
    if framework:
        cells.run(IN_A_GROUP)
        assert cells.ask("x.item()") == [float(nodes)] * nodes
        assert cells.ask("int(os.environ.get('WORLD_SIZE', 1))") == [nodes] * nodes
    assert cells.ask("globals().get('kept')") == list(keep)
    assert cells.ask("sky.instance_info().rank") == everyone
    assert cells.ask("len(sky.instance_info().peers)") == [nodes] * nodes
    pools = "json.loads(os.environ['COMPUTE_POOL'])"
    for expression in (
        "int(os.environ['SKYPILOT_NUM_NODES'])",
        "len(os.environ['SKYPILOT_NODE_IPS'].split())",
        "sky.instance_info().total_nodes",
        f"{pools}['world_size']",
    ):
        assert cells.ask(expression) == [nodes] * nodes, expression
    assert cells.ask("int(os.environ['SKYPILOT_NODE_RANK'])") == everyone
    row = registry.find(cluster.name)
    assert row is not None
    numbers = [node["node"] for machine in row.machines for node in machine["nodes"]]
    assert (row.spec["nodes"], sorted(numbers), row.leaving) == (nodes, everyone, [])
    snapshot = cluster.snapshot()
    assert [rank["rank"] for rank in snapshot["ranks"]] == everyone
    assert snapshot["cluster"]["nodes"] == cluster.spec.nodes == nodes
    assert snapshot["cluster"]["note"] == ""


def ranks_on_this_machine(cells: Cells) -> int:
    """Count the processes of a cluster that are ranks."""
    row = registry.find(cells.cluster.name)
    agents = [psutil.Process(machine["pid"]) for machine in row.machines]
    return sum(len(fork_server_of(agent).children()) for agent in agents)


def test_ranks_come_and_go_and_those_that_stay_keep_their_variables(new) -> None:
    cells = new(nodes=2)
    prepare(cells)
    with pytest.raises(sky.UsageError, match="already has 2 nodes"):
        cells.cluster.scale(2)
    with pytest.raises(sky.UsageError, match="whole number of 1 or more"):
        cells.cluster.scale(0)
    assert_is_whole(cells, 2, keep=[0, 1])
    cells.cluster.scale(4)
    assert_is_whole(cells, 4, keep=[0, 1, None, None])
    assert ranks_on_this_machine(cells) == 4
    prepare(cells)
    cells.cluster.scale(2)
    assert_is_whole(cells, 2, keep=[0, 1])
    assert ranks_on_this_machine(cells) == 2
    cells.cluster.scale(1)
    assert_is_whole(cells, 1, keep=[0])
    cells.cluster.scale(3)
    assert_is_whole(cells, 3, keep=[0, None, None])


def test_new_ranks_get_what_the_next_cell_needs_and_others_keep_what_they_made_of_it(new) -> None:
    cells = new(nodes=2, framework=False)
    cells.namespace["given"] = [1]
    cells.run("given.append(2)", names=["given"])
    cells.cluster.scale(3)
    update = cells.cluster.sync.update(["given"], cells.namespace, cells.cluster.all_ranks)
    assert update.given_anew == {"given": {2}}  # of which a cell tells the user
    assert cells.ask("given", names=["given"]) == [[1, 2], [1, 2], [1]]
    # One that leaves and comes again is a new one.
    cells.cluster.scale(1)
    cells.cluster.scale(2)
    assert cells.ask("given", names=["given"]) == [[1, 2], [1]]


def test_nodes_of_several_ranks(new) -> None:
    cells = new(nodes=1, procs_per_node=2)
    prepare(cells)
    cells.cluster.scale(2)
    cells.run(f"{IMPORTS}\n{IN_A_GROUP}")
    assert cells.ask("int(os.environ['LOCAL_RANK'])") == [0, 1, 0, 1]
    assert cells.ask("dist.get_world_size()") == [4] * 4


def test_further_agents_are_let_in_and_those_that_die_before_change_nothing(new) -> None:
    """Also by one that was alone: it had no certificate, and no door for others."""
    cells = new(nodes=1, provider=Local(machines=3))
    cluster = cells.cluster
    prepare(cells)
    cluster.scale(2)
    assert_is_whole(cells, 2, keep=[0, None])

    for word in ("importing", "checking", "forming"):

        def kill(text: str, word: str = word) -> None:
            if text.startswith(word):
                [new_one] = cluster._controller.connections[2:]
                os.kill(new_one.machine.pid, signal.SIGKILL)

        with pytest.raises(sky.SkyError, match="stays with 2 nodes: .*node 2"):
            cluster.scale(3, progress=kill)
        assert_is_whole(cells, 2, keep=[0, None])

    cluster.scale(3)
    assert len(registry.find(cluster.name).machines) == 3
    assert_is_whole(cells, 3, keep=[0, None, None])
    # Large data takes the way from agent to agent.
    import numpy as np

    cells.namespace["large"] = np.ones(3_000_000)
    before = cluster.sent_bytes
    assert cells.ask("float(large.sum())", names=["large"]) == [3e6] * 3
    assert cluster.sent_bytes - before < 25_000_000
    agents = [psutil.Process(machine["pid"]) for machine in registry.find(cluster.name).machines]
    cluster.scale(2)
    assert_is_whole(cells, 2, keep=[0, None])
    agents[2].wait(timeout=60)


def test_what_a_rank_wrote_that_has_left_can_still_be_read_by_who_comes_later(new) -> None:
    cells = new(nodes=2, framework=False)
    cells.run("print('x' * 1000)", show=(1,))
    cells.cluster.scale(1)
    cells.run("pass")
    cells.cluster.scale(2)
    cells.run("print('again')", ranks=[1], show=(1,))
    assert cells.text() == "again\n"
    assert cells.cluster.log(1, tail=1).data == b"again\n"


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_cluster_that_works_is_not_scaled(new, tmp_path: Path, nodes: int) -> None:
    cells = new(nodes=2, framework=False)
    cells.namespace["go"] = str(tmp_path / "go")
    run = cells.start(
        "import os, time\nprint('here', flush=True)\n"
        "while not os.path.exists(go): time.sleep(0.01)\nlast = 7",
        names=["go"],
        values={0: ["last"]},
    )
    with pytest.raises(sky.UsageError, match="is busy: .*`%sky interrupt`"):
        cells.cluster.scale(nodes)
    (tmp_path / "go").touch()
    run.follow()
    assert run.values() == {0: {"last": 7}}
    cells.cluster.scale(nodes)
    assert len(cells.cluster.all_ranks) == nodes


def test_a_run_for_a_rank_that_has_left_says_so(new) -> None:
    cells = new(nodes=2, framework=False)
    run = cells.cluster.run(Task((0, 1), code="pass"))
    cells.cluster.scale(1)
    run.follow()
    with pytest.raises(sky.SkyError, match="rank 1 left the cluster"):
        run.values()


# What goes wrong


def test_a_rank_that_dies_while_the_group_is_formed_does_not_hold_up_the_others(new) -> None:
    cells = new(nodes=2)
    prepare(cells)

    def kill(text: str) -> None:
        if text.startswith("forming"):
            newest = max(rank.pid for rank in cells.cluster.state.ranks if rank.rank == 2)
            os.kill(newest, signal.SIGKILL)

    with pytest.raises(sky.SkyError, match="stays with 2 nodes: rank 2"):
        cells.cluster.scale(3, progress=kill)
    assert_is_whole(cells, 2, keep=[0, 1])


def test_a_plugin_that_does_not_work_on_the_new_rank(new_with) -> None:
    def life(info):
        if info.rank == 2:
            raise OSError("no such disk")
        yield

    cells = new_with([sky.Plugin("picky", around_app=life), sky.plugins.torch()], nodes=2)
    prepare(cells)
    with pytest.raises(sky.SkyError, match="stays with 2 nodes: rank 2 .*no such disk"):
        cells.cluster.scale(3)
    assert_is_whole(cells, 2, keep=[0, 1])
    assert ranks_on_this_machine(cells) == 2


def stopped(cells: Cells, nodes: int, change: int) -> bool:
    """Scale a cluster and press Ctrl-C at a change that it goes through; return if it was heard."""
    seen = 0

    def look() -> None:
        nonlocal seen
        seen += 1
        if seen == change:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    cells.cluster.listen(look)
    with contextlib.suppress(KeyboardInterrupt):
        cells.cluster.scale(nodes, progress=lambda text: look())
    heard, seen = seen >= change, change
    return heard


@pytest.mark.parametrize("machines", [1, 3])
def test_stop_at_any_change_leaves_the_old_cluster_or_the_new_one(new, machines: int) -> None:
    framework = machines == 1  # each agent imports torch
    cells = new(nodes=2, provider=Local(machines=machines), framework=framework)
    prepare(cells)
    outcomes = []
    change = 1
    while True:
        heard = stopped(cells, 3, change)
        nodes = len(cells.cluster.all_ranks)
        assert_is_whole(cells, nodes, keep=[0, 1, None][:nodes], framework=framework)
        assert ranks_on_this_machine(cells) == nodes
        outcomes.append(nodes)
        if nodes == 3:
            heard = stopped(cells, 2, change) or heard
            nodes = len(cells.cluster.all_ranks)
            assert_is_whole(cells, nodes, keep=[0, 1, None][:nodes], framework=framework)
            if nodes == 3:
                cells.cluster.scale(2)
        if not heard:
            break
        change += 1 + change // 8
    assert outcomes[0] == 2 and outcomes[-1] == 3
    assert change > 5


def test_stop_just_when_new_nodes_are_there_ends_them(new, home: Path, monkeypatch) -> None:
    cells = new(nodes=2, provider=Local(machines=3), framework=False)
    usual = registry.record_size

    def is_cancelled() -> bool:
        return any(task.cancelling() for task in asyncio.all_tasks(event_loop.loop()))

    def record(cluster: str, nodes: int, *machines: object) -> None:
        if not is_cancelled():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            until(is_cancelled)
        usual(cluster, nodes, *machines)

    prepare(cells)
    before = {*processes_of(home)}
    monkeypatch.setattr(registry, "record_size", record)
    with pytest.raises(KeyboardInterrupt):
        cells.cluster.scale(3)
    monkeypatch.undo()
    until(lambda: {*processes_of(home)} <= before)
    assert_is_whole(cells, 2, keep=[0, 1], framework=False)


@dataclass(frozen=True)
class Death:
    """A kernel that scales a cluster, and is killed at a change that the cluster goes through.

    Attributes
    ----------
    name
        Gets the cluster's name; where it has one already, that cluster is taken up.
    """

    name: Path
    machines: int
    framework: bool
    change: int
    before: int
    after: int

    def die(self, variables: Mapping[str, str]) -> None:
        """Be that kernel, in an environment with these variables."""
        os.environ.clear()  # who forks such processes may be there from an earlier test
        os.environ.update(variables)
        faulthandler.dump_traceback_later(200, exit=True)  # where it hangs, if it does
        cells = self._cells()
        prepare(cells)
        seen = 0

        def look(text: str = "") -> None:
            nonlocal seen
            seen += 1
            if seen == self.change:
                os.kill(os.getpid(), signal.SIGKILL)

        cells.cluster.listen(look)
        cells.cluster.scale(self.after, progress=look)
        os.kill(os.getpid(), signal.SIGKILL)

    def taken_up(self) -> Cells:
        """Be another kernel, which takes the cluster up."""
        provider = Local(machines=self.machines)
        return taken_up(self.name.read_text(), provider=provider, framework=self.framework)

    def _cells(self) -> Cells:
        if self.name.exists():
            cells = self.taken_up()
            if len(cells.cluster.all_ranks) != self.before:
                cells.cluster.scale(self.before)
            return cells
        provider = Local(machines=self.machines)
        cells = start(self.before, provider=provider, framework=self.framework)
        self.name.write_text(cells.cluster.name)
        return cells


@pytest.mark.parametrize(
    ("machines", "framework", "changes"),
    [
        (1, True, (4, 12)),  # the moments in which the group is formed
        (1, False, (2, 8, 100)),
        (3, False, (2, 4, 8, 12, 100)),
    ],
)
def test_another_kernel_finds_the_old_cluster_or_the_new_one(
    tmp_path: Path, home: Path, machines: int, framework: bool, changes: Sequence[int]
) -> None:
    name = tmp_path / "name"
    moments = itertools.product(changes, [(2, 3), (3, 2)])
    deaths = [Death(name, machines, framework, change, *counts) for change, counts in moments]
    try:
        for death in deaths:
            kernel = forks_with(__name__).Process(target=death.die, args=(dict(os.environ),))
            kernel.start()
            kernel.join()
            assert kernel.exitcode == -signal.SIGKILL
            cells = death.taken_up()
            try:
                assert_is_one_or_the_other(cells, death)
            finally:
                cells.cluster.close()
    finally:
        if name.exists():
            deaths[0].taken_up().cluster.down()
        # An agent whose kernel died before the cluster knew of it waits two minutes for another.
        kill_processes_of(home)


def assert_is_one_or_the_other(cells: Cells, death: Death) -> None:
    nodes = len(cells.cluster.all_ranks)
    assert nodes in (death.before, death.after)
    keep = [0, 1, 2 if death.before == 3 else None][:nodes]
    assert_is_whole(cells, nodes, keep, framework=death.framework)
    assert len(everything(cells)) >= 2 + nodes if death.machines == 1 else True
    # One that was told to end before the kernel was killed may be at its last words.
    until(lambda: ranks_on_this_machine(cells) <= nodes)
    assert ranks_on_this_machine(cells) == nodes
