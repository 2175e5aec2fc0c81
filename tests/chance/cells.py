"""Steps: what users do, in the notebook and in cells."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from hypothesis.stateful import rule

from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.runs.task import Task
from tests.chance.base import Machine, step
from tests.chance.model import LISTS, NAMES, NUMBERS, Statement
from tests.chance.strategies import LINES, SMALL, SOME, STATEMENTS


class CellSteps(Machine):
    """Assignments in the notebook, cells, and several cells at once."""

    # In the notebook

    @rule(name=st.sampled_from([*NUMBERS, *LISTS]), number=SMALL)
    @step
    def assign(self, name: str, number: int) -> None:
        self._assign(name, [number] if name in LISTS else number)

    @rule(size=st.sampled_from([10, 30_000, 300_000, 3_000_000]), number=SMALL)
    @step
    def assign_data(self, size: int, number: int) -> None:
        self._assign("data", random.Random(number).randbytes(size))

    @rule(name=st.sampled_from(LISTS))
    @step
    def change(self, name: str) -> None:
        if name in self.world.model.here:
            # A number that no list has had: a list that is as it was before has not changed.
            number = 1000 + self.number
            self.world.here(f"{name}.append({number})")
            self.world.model.append(name, number)

    @rule(name=st.sampled_from(NAMES))
    @step
    def delete(self, name: str) -> None:
        if name in self.world.model.here:
            self.world.here(f"del {name}")
            self.world.model.delete(name)

    # Cells

    @rule(some=SOME, statements=STATEMENTS, lines=LINES, fails=st.booleans())
    @step
    def cell(self, some: int, statements: list[Statement], lines: int, fails: bool) -> None:
        job = self.world.job(self._ranks(some), lines)
        statements = self._possible(job.ranks, statements)
        if not fails:
            self.world.begin(job, statements)
            self.world.model.run(job.ranks, statements)
            self.world.finish(job)
            return
        code = f"{job.code(statements)}\nraise KeyError('{job.tag}')"
        job.handle = self.world.notebook.start(code, ranks=job.ranks, show=job.ranks)
        self.world.model.run(job.ranks, statements)
        job.handle.follow(job.show)
        self._raises(job, KeyError)
        # In a group, the first rank that fails has the others stopped, maybe before their lines.
        job.check_lines(whole=() if self.world.shape.framework else job.ranks)

    @rule(statements=STATEMENTS, names=st.sets(st.sampled_from([*NUMBERS, *LISTS]), max_size=2))
    @step
    def cell_that_gives_back(self, statements: list[Statement], names: set[str]) -> None:
        job = self.world.job(self.world.cluster.all_ranks)
        out = sorted(names)
        bind = [Statement("set", name, number=100 + self.number) for name in out]
        statements = [*bind, *self._possible(job.ranks, statements)]
        self.world.begin(job, statements, out)
        self.world.model.run(job.ranks, statements)
        self.world.finish(job, out)

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1))
    @step
    def push(self, names: set[str]) -> None:
        there = sorted(names & self.world.model.here.keys())
        notebook, ranks = self.world.notebook, self.world.cluster.all_ranks
        update = self.world.cluster.sync.update(there, notebook.names, ranks, force=True)
        run = self.world.cluster.run(Task(ranks, code="", update=update))
        run.follow()
        run.values()
        self.world.model.push(there)

    @rule(cells=st.lists(st.tuples(SOME, STATEMENTS, LINES), min_size=2, max_size=5))
    @step
    def queue(self, cells: list[tuple[int, list[Statement], int]]) -> None:
        """Ask for several cells at once, and assign something in between; the first one waits."""
        world = self.world
        jobs = [
            world.job(self._ranks(some), lines, waits=at == 0)
            for at, (some, _, lines) in enumerate(cells)
        ]
        for job, (_, statements, _) in zip(jobs, cells, strict=True):
            statements = self._possible(job.ranks, statements)
            world.begin(job, statements)
            world.model.run(job.ranks, statements)
            self._assign("a", 100 + self.number)
        assert jobs[0].go
        jobs[0].go.touch()
        for job in reversed(jobs):
            world.finish(job)

    @rule(some=SOME, others=st.lists(SOME, min_size=1, max_size=3))
    @step
    def stop_before_its_turn(self, some: int, others: list[int]) -> None:
        world = self.world
        first = world.job(self._ranks(some), waits=True)
        world.begin(first)
        waiting = [world.job(self._ranks(other), 3) for other in others]
        for job in waiting:
            world.begin(job, [Statement("set", "b", number=7)])
        for job in waiting:
            assert job.handle
            job.handle.stop()
            job.handle.follow(job.show)
            self._raises(job, Interrupted)
            assert not job.texts, f"{job.tag} was stopped before its turn, and printed"
        assert first.go
        first.go.touch()
        world.model.run(first.ranks, [])
        world.finish(first)
