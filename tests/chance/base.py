"""What steps on a cluster have in common: each is written down, watched, and checked afterwards."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from jupyter_sky.errors import SkyError
from tests.chance import leaks
from tests.chance.model import Statement
from tests.chance.world import Job, Shape, World

_SLOW = 4.0  # seconds of a step that are worth a line


def step(function: Callable[..., None]) -> Callable[..., None]:
    """Say what is done, count it, and remember whether it failed; check everything afterwards."""

    @functools.wraps(function)
    def run(self: Machine, **arguments: Any) -> None:
        Machine.steps += 1
        self.number += 1
        said = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        print(f"{Machine.steps:6} {function.__name__}({said})", file=self.log, flush=True)
        began = time.monotonic()
        watch = threading.Timer(self.patience, _give_up, [self])
        watch.daemon = True
        watch.start()
        try:
            function(self, **arguments)
            self.world.settle()
            self.world.check()
        except BaseException:
            self.failed = True
            # Hypothesis may only say that the same steps went well before.
            traceback.print_exc(file=self.log)
            raise
        finally:
            watch.cancel()
        if (took := time.monotonic() - began) > _SLOW:
            print(f"       took {took:.0f} s", file=self.log, flush=True)

    return run


def _give_up(machine: Machine) -> None:
    """Say where a step hangs, and end this process: nothing else would end it."""
    world = machine.world
    print(f"this step hangs; {world.cluster.state}", file=sys.stderr)
    for job in world.jobs:
        ends = {rank: text[-60:] for rank, text in job.texts.items()}
        finished = job.handle and job.handle.finished
        print(f"{job.tag} finished={finished} {ends}", file=sys.stderr)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)


class Machine(RuleBasedStateMachine):
    """A notebook and its cluster, and what steps on it have in common.

    Attributes
    ----------
    steps
        How many steps were made so far, of all machines of this process.
    log
        Where each step is written.
    patience
        Seconds of a step after which it is taken to hang.
    """

    steps: ClassVar[int] = 0
    log: ClassVar[Any] = sys.stderr
    patience: ClassVar[float] = 500.0

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self.number = 0

    shapes: ClassVar[list[Shape]] = [Shape(1), Shape(2), Shape(3), Shape(2, agents=2)]

    @initialize(at=st.integers(0, 100))
    def start(self, at: int) -> None:
        shape = self.shapes[at % len(self.shapes)]
        print(f"       start({shape})", file=self.log, flush=True)
        self.world = self._make(shape)
        try:
            self.before = leaks.belongings(self.world)
        except BaseException:
            self.failed = True
            raise

    def _make(self, shape: Shape) -> World:
        """Return a cluster of a shape."""
        return World(shape)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        found = leaks.traces(world)
        try:
            if not self.failed:
                world.prove_group()
                if len(world.cluster.all_ranks) != world.shape.nodes:
                    world.cluster.scale(world.shape.nodes)
                    world.prove_group()
                leaks.check_same(self.before, world)
                found = leaks.traces(world)
        finally:
            with contextlib.suppress(SkyError) if self.failed else contextlib.nullcontext():
                world.cluster.down()
            world.remove()
        if not self.failed:
            leaks.check_gone(found, world.cluster.name)

    # What steps have in common

    def _ranks(self, some: int) -> tuple[int, ...]:
        ranks = self.world.cluster.all_ranks
        return tuple(rank for rank in ranks if some >> rank & 1) or ranks[:1]

    def _possible(self, ranks: Sequence[int], statements: Sequence[Statement]) -> list[Statement]:
        """Return statements that find what they read, with others in place of those that do not."""
        bound: set[str] = set()
        found = []
        for each in statements:
            if each.reads in bound or self.world.model.can(each, ranks):
                found.append(each)
            else:
                found.append(Statement("set", each.name, number=each.number))
            if name := found[-1].binds:
                bound.add(name)
        return found

    def _waiting_job(
        self, some: int, statements: Sequence[Statement], lines: int
    ) -> tuple[Job, list[Statement]]:
        job = self.world.job(self._ranks(some), lines, waits=True)
        return job, self._possible(job.ranks, statements)

    def _assign(self, name: str, value: Any) -> None:
        self.world.here(f"{name} = {value!r}")
        self.world.model.assign(name, value)

    def _when_inside(self, job: Job, act: Callable[[], object]) -> None:
        """Follow a cell, and do something as soon as every rank waits at its end."""
        acted = False

        def show(event: object) -> None:
            nonlocal acted
            job.show(event)
            if job.inside and not acted:
                acted = True
                act()

        assert job.handle
        job.handle.follow(show)
        assert acted, f"{job.tag} ended before it was broken"

    def _ends_well(self, job: Job) -> None:
        assert job.handle
        job.handle.values()
        job.check_lines(whole=job.ranks)

    def _raises(
        self, job: Job, kind: type[BaseException] | tuple[type[BaseException], ...]
    ) -> None:
        assert job.handle
        try:
            job.handle.values()
        except kind:
            self.world.until(lambda: job.handle.finished or not self.world.cluster.alive)
            job.drain()  # what came after the user had control again
            return
        except BaseException as error:
            raise AssertionError(f"{job.tag} raised {error!r}") from error
        raise AssertionError(f"{job.tag} raised nothing")

    def _await_restart(self, ranks: Sequence[int], before: dict[int, int | None]) -> None:
        """Wait until ranks are other processes, with nothing in memory."""
        self.world.until(
            lambda: all(self.world.pids()[rank] not in (None, before[rank]) for rank in ranks)
        )
        self.world.model.empty(ranks)
