"""All steps together. Hypothesis chooses which, in which order, and with what."""

from __future__ import annotations

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.errors import ClusterLost
from tests.chance import leaks, sidebar
from tests.chance.base import Machine, step
from tests.chance.cells import CellSteps
from tests.chance.guest import guest
from tests.chance.model import Statement
from tests.chance.strategies import LINES, SOME, STATEMENTS
from tests.chance.trouble import TroubleSteps
from tests.cluster.conftest import Cells
from tests.node_processes import fork_server_of
from tests.waiting import PATIENCE

MOST_NODES = 4


class Chance(CellSteps, TroubleSteps):
    """A notebook and its cluster, to which anything may happen."""

    # Its life

    @rule()
    @step
    def a_quiet_moment(self) -> None:
        """Do nothing: Hypothesis begins with the first of the rules alone, again and again."""

    @rule(some=SOME)
    @step
    def restart(self, some: int) -> None:
        ranks = self._ranks(some)
        self.world.cluster.restart(ranks)
        self.world.model.empty(ranks)

    @rule(victim=st.integers(0, 3))
    @step
    def idle_rank_is_killed(self, victim: int) -> None:
        before = self.world.pids()
        rank = victim % len(before)
        self.world.process(rank).kill()
        self._await_restart([rank], before)

    @rule(nodes=st.integers(1, MOST_NODES))
    @step
    def scale(self, nodes: int) -> None:
        if nodes != len(self.world.cluster.state.nodes):
            self.world.cluster.scale(nodes)
            self.world.model.resize(nodes)

    @rule()
    @step
    def sidebar_looks(self) -> None:
        """Have a Jupyter server list the cluster: it is idle, and has as many ranks as it has."""
        entry = sidebar.entry(self.world)
        assert entry["state"] == "ready", entry
        assert entry["nodes"] == len(self.world.cluster.state.nodes), entry

    @rule()
    @step
    def change_kernel(self) -> None:
        self.world.change_kernel()

    @rule(some=SOME, restarts=st.booleans())
    @step
    def other_kernel(self, some: int, restarts: bool) -> None:
        """Have another kernel run a cell, or restart ranks, while this one is connected."""
        ranks = self._ranks(some)
        with self.world.visitor() as other:
            cells = Cells(other)
            cells.run("guest = 1", ranks=ranks)
            if restarts:
                before = self.world.pids()
                other.restart(ranks)
                self._await_restart(ranks, before)

    @rule(runs=st.booleans(), some=SOME, statements=STATEMENTS, lines=LINES)
    @step
    def other_kernel_is_killed(
        self, runs: bool, some: int, statements: list[Statement], lines: int
    ) -> None:
        """Kill another kernel that is attached: its run goes on, and a third one may stop it."""
        world = self.world
        with guest(world.cluster.name, runs, world.hosts) as other:
            other.kill()
            other.wait()
        if runs:
            with world.visitor() as third:
                assert third.interrupt(), "the run of the kernel that was killed is not seen"
                assert third.wait_until_idle(PATIENCE), "that run does not end"
        job = world.job(self._ranks(some), lines)
        statements = self._possible(job.ranks, statements)
        world.begin(job, statements)
        world.model.run(job.ranks, statements)
        world.finish(job)

    @precondition(lambda self: self.world.shape.agents > 1 and len(self.world.pids()) > 1)
    @rule()
    @step
    def agent_is_replaced(self) -> None:
        """Kill an agent; the next cell finds another in its place."""
        world = self.world
        before = world.pids()
        connection = world.cluster._controller.connections[-1]
        ranks = sorted(connection.ranks)
        agent = world.agent(world.machines[-1])
        assert agent
        agent.kill()
        self._await_restart(ranks, before)

    @precondition(lambda self: self.world.shape.agents == 1)
    @rule(what=st.sampled_from(["agent", "fork server"]))
    @step
    def cluster_is_lost(self, what: str) -> None:
        """Kill what a cluster cannot do without: the cell says so, and the next one starts anew."""
        world = self.world
        found = leaks.traces(world)
        job, _ = self._waiting_job(15, [], 3)
        world.begin(job)
        process = world.agent(world.machines[0])
        assert process
        if what == "fork server":
            process = fork_server_of(process)
        self._when_inside(job, process.kill)
        self._raises(job, (ClusterLost, RankLost))
        job.check_lines()
        world.cluster.down()
        leaks.check_gone(found, world.cluster.name)
        world.jobs.clear()
        world.start()
        self.before = leaks.belongings(world)


def run(seed: int, clusters: int, steps: int, kind: type[Machine] = Chance) -> None:
    """Make so many steps on each of some clusters, as a seed says; raise what goes wrong.

    What failed is not tried again with fewer steps: processes do not do the same twice.
    """
    chosen = settings(
        max_examples=clusters,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(hypothesis.seed(seed)(type("Chance", (kind,), {})), settings=chosen)
