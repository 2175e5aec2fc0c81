"""Steps: what breaks, or is stopped, while a cell runs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

from hypothesis import strategies as st
from hypothesis.stateful import rule

import jupyter_sky as sky
from jupyter_sky.cluster.errors import Interrupted, RankLost
from tests.chance import sidebar
from tests.chance.base import Machine, step
from tests.chance.model import DATA, NUMBERS, Statement
from tests.chance.strategies import LINES, MOMENT, SOME, STATEMENTS


class _Left(Exception):
    """The kernel was left in the middle of a cell."""


class TroubleSteps(Machine):
    """What breaks when every rank is inside of a cell, or at any moment."""

    # In the middle of a cell

    @rule(some=SOME, statements=STATEMENTS, lines=LINES, times=st.integers(1, 3))
    @step
    def links_break(self, some: int, statements: list[Statement], lines: int, times: int) -> None:
        job, statements = self._waiting_job(some, statements, lines)
        self.world.begin(job, statements)
        self.world.model.run(job.ranks, statements)

        def act() -> None:
            for _ in range(times):
                self.world.cut_links()
            job.go.touch()

        self._when_inside(job, act)
        self._ends_well(job)

    @rule(some=SOME, statements=STATEMENTS, lines=LINES)
    @step
    def links_break_while_a_cell_begins(
        self, some: int, statements: list[Statement], lines: int
    ) -> None:
        job = self.world.job(self._ranks(some), lines)
        statements = self._possible(job.ranks, statements)
        self.world.begin(job, statements)
        self.world.cut_links()
        self.world.model.run(job.ranks, statements)
        self.world.finish(job)

    @rule(some=SOME, statements=STATEMENTS, lines=LINES, pause=MOMENT)
    @step
    def agent_is_suspended(
        self, some: int, statements: list[Statement], lines: int, pause: float
    ) -> None:
        job, statements = self._waiting_job(some, statements, lines)
        self.world.begin(job, statements)
        self.world.model.run(job.ranks, statements)
        agent = self.world.agent(self.world.machines[0])
        assert agent

        def act() -> None:
            agent.suspend()
            job.go.touch()
            timer.start()

        timer = threading.Timer(pause, agent.resume)
        self._when_inside(job, act)
        timer.join()
        self._ends_well(job)

    @rule(
        some=SOME,
        statements=STATEMENTS,
        lines=LINES,
        by=st.sampled_from(["key", "visitor", "sidebar"]),
    )
    @step
    def stop(self, some: int, statements: list[Statement], lines: int, by: str) -> None:
        job, statements = self._waiting_job(some, statements, lines)
        self.world.begin(job, statements)
        self.world.model.run(job.ranks, statements)

        def act() -> None:
            if by == "key":
                os.kill(os.getpid(), signal.SIGINT)
                return
            # A server asks no host: it knows what kernels tell.
            if by == "sidebar" and not self.world.hosts:
                assert sidebar.entry(self.world)["state"] == "running"
                sidebar.interrupt(self.world)
                return
            with self.world.visitor() as other:
                assert other.interrupt(), "another kernel sees nothing that runs"

        with contextlib.suppress(Interrupted):
            self._when_inside(job, act)
        self._raises(job, Interrupted)
        job.check_lines()

    @rule(some=SOME, statements=STATEMENTS, victim=st.integers(0, 3))
    @step
    def rank_is_frozen_and_stopped(
        self, some: int, statements: list[Statement], victim: int
    ) -> None:
        job, statements = self._waiting_job(some, statements, 0)
        rank = job.ranks[victim % len(job.ranks)]
        self.world.begin(job, statements)
        self.world.model.run(job.ranks, statements)
        before, process = self.world.pids(), self.world.process(rank)

        def act() -> None:
            process.suspend()
            os.kill(os.getpid(), signal.SIGINT)

        with contextlib.suppress(Interrupted):
            self._when_inside(job, act)
        self._raises(job, Interrupted)
        self._await_restart([rank], before)

    @rule(some=SOME, statements=STATEMENTS, lines=LINES, victim=st.integers(0, 3))
    @step
    def rank_is_killed(
        self, some: int, statements: list[Statement], lines: int, victim: int
    ) -> None:
        job, statements = self._waiting_job(some, statements, lines)
        rank = job.ranks[victim % len(job.ranks)]
        self.world.begin(job, statements)
        self.world.model.run(job.ranks, statements)
        before, process = self.world.pids(), self.world.process(rank)

        def act() -> None:
            process.kill()
            if not self.world.shape.framework:
                job.go.touch()

        self._when_inside(job, act)
        self._raises(job, RankLost)
        job.check_lines()
        self._await_restart([rank], before)

    @rule(statements=STATEMENTS, lines=LINES, names=st.sets(st.sampled_from(NUMBERS)))
    @step
    def kernel_is_left(self, statements: list[Statement], lines: int, names: set[str]) -> None:
        """Leave the kernel in the middle of a cell, and follow that from another one."""
        world = self.world
        job, statements = self._waiting_job(15, statements, lines)
        out = sorted(names)
        statements = [*(Statement("set", name, number=5) for name in out), *statements]
        world.begin(job, statements, out)
        world.model.run(job.ranks, statements)

        def leave() -> None:
            raise _Left

        with contextlib.suppress(_Left):
            self._when_inside(job, leave)
        world.change_kernel()
        job.texts.clear()
        job.handle = world.cluster.pop_unseen_run()
        assert job.handle, "the run that goes on was not found"
        world.jobs.append(job)
        job.go.touch()
        job.handle.follow(job.show)
        values = job.handle.values()
        job.check_lines(whole=job.ranks)
        given = {name: world.model.ranks[0].names[name] for name in out}
        assert values == ({0: given} if out else {}), f"{values} was given, not {given}"

    # At any moment

    @rule(
        some=SOME,
        lines=LINES,
        moment=MOMENT,
        what=st.sampled_from(["stop", "kill", "cut", "interrupt"]),
        victim=st.integers(0, 3),
    )
    @step
    def any_moment(self, some: int, lines: int, moment: float, what: str, victim: int) -> None:
        """Break something a moment after a cell began: it may or may not come to its end."""
        world = self.world
        job = world.job(self._ranks(some), lines)
        rank = job.ranks[victim % len(job.ranks)]
        statements = self._possible(
            job.ranks,
            [Statement("set", "c", number=100 + self.number), Statement("measure", "b", "data")],
        )
        before, process = world.pids(), world.process(rank)
        act = {
            "stop": lambda: os.kill(os.getpid(), signal.SIGINT),
            "kill": process.kill,
            "cut": world.cut_links,
            "interrupt": world.cluster.interrupt,
        }[what]
        timer = threading.Timer(moment, act)
        try:
            try:
                handle = world.begin(job, statements)
                timer.start()
                handle.follow(job.show)
                timer.join()  # Stop may come when the cell has ended
            finally:
                timer.join()
            handle.values()
            whole = True
        except (KeyboardInterrupt, sky.RemoteError) as error:
            whole = False
            # In a group, others may notice the end of a rank before its agent does.
            lost = sky.RemoteError if world.shape.framework else RankLost
            expected = {"kill": lost, "cut": ()}.get(what, KeyboardInterrupt)
            assert isinstance(error, expected), f"{what}: {error!r}"
        if whole:
            job.check_lines(whole=job.ranks)
            world.model.run(job.ranks, statements)
            touched = []
        else:
            job.check_lines(gap=what == "stop")
            touched = world.model.maybe_run(job.ranks, statements)
        if what == "kill":
            self._await_restart([rank], before)
            if whole:
                # It may have waited for the new process, and have bound its names there.
                world.settle()
                world.cluster.restart([rank])
        world.settle()
        for name in touched:
            if name in DATA:
                self._assign(name, bytes([self.number % 256]) * 5)
            else:
                self._assign(name, 100 + self.number)
