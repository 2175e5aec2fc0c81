"""The namespace's bookkeeping is used by the user's thread and by the event loop at once.

A notebook in this thread and ranks in the event loop do random things to the same names, as fast as
they can, while the interpreter switches between threads at every chance. No cluster is needed: the
ranks are dictionaries that are bound what the groups of an update say.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from jupyter_sky.analysis.cell_names import CellNames, analyse
from jupyter_sky.cluster.namespace.sync import NamespaceSync
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.transport import event_loop

RANKS = (0, 1, 2)
NAMES = tuple(f"name_{number}" for number in range(8))
ROUNDS, RUNS = 15, 16
AT_ONCE = 3  # runs that may wait for their turn


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Let threads take turns at nearly every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def sync() -> NamespaceSync:
    sync = NamespaceSync()
    sync.shares_files = False
    return sync


@dataclass
class AskedRun:
    """A run, with the step of the notebook's thread at which it was asked for."""

    update: NamespaceUpdate
    step: int
    bound: dict[int, frozenset[str]]


class Ranks:
    """What ranks really have; lives in the event loop.

    Attributes
    ----------
    contents
        For each rank and name what it holds: the digest of a value of the notebook's, or the step
        of the run that bound it.
    tokens
        The first token of each group that was sent; ranks that have changed it differently get
        the same one.
    lacked
        What runs did not find.
    """

    def __init__(self, sync: NamespaceSync) -> None:
        self.sync = sync
        self.contents: dict[int, dict[str, str | int]] = {rank: {} for rank in RANKS}
        self.tokens: dict[str, int] = {}
        self.lacked: list[tuple[int, int, str]] = []
        self._chance = random.Random(2)

    async def run(self, run: AskedRun) -> None:
        """Do what the scheduler does with a run, and what may happen meanwhile."""
        update, chance = run.update, self._chance
        if chance.random() < 0.2:
            self.restart(chance.choice(RANKS))
        while self.sync.is_outdated(update):
            await self.sync.refresh(update)
        self.tokens |= {
            group["shipment"]: group["tokens"][0] for group in update.groups if group["tokens"]
        }
        if chance.random() < 0.1:
            self.sync.lost(update)
            return
        for rank in RANKS:
            await self._run_on(rank, run)

    async def _run_on(self, rank: int, run: AskedRun) -> None:
        update, chance = run.update, self._chance
        if chance.random() < 0.1:
            self.restart(rank)
            return
        arrived = set()
        for group in update.groups:
            if rank in group["ranks"]:
                if chance.random() < 0.02:
                    self.sync.ran(update, {rank: {}}, well=False)
                    self.sync.missed(update, rank, arrived)
                    return
                self.contents[rank].update(group["digests"])
                arrived.add(group["shipment"])
        there = self.contents[rank]
        self.lacked += [(run.step, rank, name) for name in update.names if name not in there]
        await asyncio.sleep(0)
        if chance.random() < 0.05:
            self.sync.ran(update, {rank: {}}, well=False)
            return
        bound = update.effects.cell.writes
        there.update(dict.fromkeys(bound, run.step))
        run.bound[rank] = bound
        self.sync.ran(update, {rank: dict.fromkeys(bound, True)}, well=True)

    def restart(self, rank: int) -> None:
        self.contents[rank].clear()
        self.sync.forget(rank)


class Cells:
    """The notebook's cells; lives in the thread of the test."""

    def __init__(self, sync: NamespaceSync) -> None:
        self.sync = sync
        self.names: dict[str, Any] = {}
        self.steps: dict[str, int] = {}
        self.chance = random.Random(1)
        self._shared = [[number] for number in range(4)]
        for name in NAMES:
            self.assign(name, 0)

    def assign(self, name: str, step: int) -> None:
        # Enough objects for the table of those that were sent to be swept now and then.
        self.names[name] = {"shared": self.chance.choice(self._shared), "step": step}
        self.names[name]["objects"] = [[number] for number in range(20)]
        self.steps[name] = step
        self.sync.assigned([name], self.names)

    def ask(self, step: int) -> AskedRun:
        """Ask for a run that reads some names and binds one."""
        [bound, *reads] = self.chance.sample(NAMES, 4)
        cell = CellNames(frozenset(reads), frozenset([bound]), frozenset([bound]))
        update = self.sync.update(reads, self.names, RANKS, cell=cell)
        self.sync.sent(update)
        return AskedRun(update, step, {})

    def bind(self, run: AskedRun) -> None:
        """Bind what a run has bound, as ``--out`` does."""
        if len(run.bound) == len(RANKS):
            [name] = has = run.bound[0]
            self.names[name] = {"returned": run.step}
            self.steps[name] = -1
            self.sync.returned(has, self.names, run.update, run.bound)
            self.sync.learn({self.chance.randrange(1000): self.names[name]}, are_named=True)


def play(cells: Cells, ranks: Ranks, steps: range) -> None:
    """Run cells in the notebook and on the ranks until all of them are over."""
    free, turn = threading.Semaphore(AT_ONCE), asyncio.Lock()
    runs = []

    async def take_turns(run: AskedRun) -> None:
        async with turn:
            try:
                await ranks.run(run)
            finally:
                free.release()

    for step in steps:
        for name in cells.chance.sample(NAMES, 2):
            cells.assign(name, step)
        if step % 5 == 0 and len(runs) > AT_ONCE:
            run, end = runs[-1 - AT_ONCE]
            end.result(60)
            cells.bind(run)
        assert free.acquire(timeout=60)
        run = cells.ask(step)
        runs.append((run, event_loop.submit(take_turns(run))))
    for _, end in runs:
        end.result(60)


def check_what_is_believed(cells: Cells, ranks: Ranks) -> None:
    """Nothing is believed to be on a rank that is not there."""
    for rank in RANKS:
        for name in cells.sync._remote_state.now.keys(rank):
            believed = cells.sync._remote_state.now.value(rank, name)
            there = ranks.contents[rank].get(name)
            assert there is not None, (rank, name, believed)
            if not believed.is_ranks_own and isinstance(there, str):
                assert there == believed.digest, (rank, name)


def check_that_the_last_assignment_wins(cells: Cells, ranks: Ranks) -> None:
    update = cells.sync.update(NAMES, cells.names, RANKS)
    cells.sync.sent(update)
    for group in update.groups:
        for rank in group["ranks"]:
            ranks.contents[rank].update(group["digests"])
    for rank in RANKS:
        cells.sync.ran(update, {rank: {}}, well=True)
    items = cells.sync._dependencies.collector(cells.names, CellNames())
    for rank in RANKS:
        for name in NAMES:
            there = ranks.contents[rank][name]
            if isinstance(there, int):
                assert there >= cells.steps[name], (rank, name)
            elif cells.steps[name] >= 0:
                assert there == items.item(name).digest, (rank, name)


def test_the_notebook_and_the_loop_at_once(sync) -> None:
    cells, ranks = Cells(sync), Ranks(sync)
    for number in range(ROUNDS):
        play(cells, ranks, range(number * RUNS, (number + 1) * RUNS))
        assert not ranks.lacked, ranks.lacked
        check_what_is_believed(cells, ranks)
        check_that_the_last_assignment_wins(cells, ranks)
    # A token stands for one object.
    assert len(ranks.tokens) == len(set(ranks.tokens.values())) > ROUNDS * RUNS


# What such a notebook comes upon now and then, one case at a time


def ask(sync: NamespaceSync, names: dict[str, Any], *reads: str, binds: str = "") -> Any:
    """Ask for a run on rank 0."""
    bound = frozenset(binds.split())
    cell = CellNames(frozenset(reads), bound, bound)
    update = sync.update(reads, names, [0], cell=cell)
    sync.sent(update)
    return update


def refreshed(sync: NamespaceSync, update: NamespaceUpdate) -> set[str]:
    """Return what an update holds when it is its turn."""
    while sync.is_outdated(update):
        event_loop.wait(sync.refresh(update))
    return {name for group in update.groups if group["ranks"] for name in group["names"]}


def test_what_a_later_run_is_sent_or_binds_is_not_there_before(sync) -> None:
    names = {"x": [1], "y": [2]}
    sync.ran(ask(sync, names, "x", "y"), {0: {}}, well=True)
    first = ask(sync, names, "x", "y")
    assert refreshed(sync, first) == set()
    sync.forget(0)
    ask(sync, names, "y", binds="x")
    assert refreshed(sync, first) == {"x", "y"}


def test_what_a_failed_run_did_not_bind_is_sent(sync) -> None:
    names = {"x": [1]}
    first = ask(sync, names, binds="x")
    second = ask(sync, names, "x")
    sync.ran(first, {0: {}}, well=False)
    assert refreshed(sync, second) == {"x"}


def test_what_came_back_from_a_process_that_is_gone(sync) -> None:
    names: dict[str, Any] = {}
    run = ask(sync, names, binds="x")
    sync.ran(run, {0: {"x": True}}, well=True)
    sync.forget(0)
    names["x"] = [1]
    sync.returned(["x"], names, run, {0: {"x"}})
    assert refreshed(sync, ask(sync, names, "x")) == {"x"}


def test_what_came_back_after_something_else_was_sent(sync) -> None:
    names: dict[str, Any] = {}
    run = ask(sync, names, binds="x")
    sync.ran(run, {0: {"x": True}}, well=True)
    names["x"] = [1]
    sync.assigned(["x"], names)
    sync.ran(ask(sync, names, "x"), {0: {}}, well=True)
    names["x"] = [2]
    sync.returned(["x"], names, run, {0: {"x"}})
    assert refreshed(sync, ask(sync, names, "x")) == {"x"}


@pytest.mark.parametrize("returns_first", [False, True])
def test_what_came_back_after_a_later_run_has_bound_the_name(sync, returns_first: bool) -> None:
    names: dict[str, Any] = {"x": [0]}
    run = ask(sync, names, "x", binds="x")
    sync.ran(run, {0: {"x": True}}, well=True)
    later = ask(sync, names, "x", binds="x")

    def returned() -> None:
        names["x"] = [1]
        sync.returned(["x"], names, run, {0: {"x"}})

    if returns_first:
        returned()
    sync.ran(later, {0: {"x": True}}, well=True)
    if not returns_first:
        returned()
    assert refreshed(sync, ask(sync, names, "x")) == set()
    names["x"] = [2]
    sync.assigned(["x"], names)
    assert refreshed(sync, ask(sync, names, "x")) == {"x"}


def test_a_run_that_waits_is_not_sent_what_a_result_has_replaced(sync) -> None:
    names: dict[str, Any] = {"x": [0]}
    run = ask(sync, names, "x", binds="x")
    sync.ran(run, {0: {"x": True}}, well=True)
    maybe = CellNames(frozenset(["x"]), frozenset(["x"]), frozenset())  # as in a loop
    later = sync.update(["x"], names, [0], cell=maybe)
    sync.sent(later)
    waits = ask(sync, names, "x")
    names["x"] = [1]
    sync.returned(["x"], names, run, {0: {"x"}})
    sync.ran(later, {0: {"x": True}}, well=True)
    assert refreshed(sync, waits) == set()
    assert refreshed(sync, ask(sync, names, "x")) == set()


def test_an_update_that_does_not_wait_counts_on_no_run_that_does(sync) -> None:
    names = {"x": [1]}
    ask(sync, names, "x")
    assert sync.update(["x"], names, [0]).groups == []
    assert refreshed(sync, sync.update(["x"], names, [0], at_once=True)) == {"x"}


def test_calls_that_wait_do_not_make_the_next_one_slow(sync) -> None:
    names = {"x": [1]}
    sync.sent(sync.update(["x"], names, RANKS))
    steps_of_a_call(sync, names)
    before = steps_of_a_call(sync, names)
    for _ in range(100):
        sync.sent(sync.update(["x"], names, RANKS))
    assert steps_of_a_call(sync, names) < before + 100


def test_nor_do_calls_that_waited_for_a_run_and_lack_nothing_then(sync) -> None:
    names = {"x": [1]}
    first = sync.update(["x"], names, RANKS)
    sync.sent(first)
    sync.ran(first, {rank: {} for rank in RANKS}, well=True)
    steps_of_a_call(sync, names)
    before = steps_of_a_call(sync, names)
    run = sync.update([], names, RANKS, cell=analyse("if chance: x = [2]"))
    sync.sent(run)
    names["x"] = [3]
    sync.assigned(["x"], names)
    later = sync.update([], names, RANKS, cell=analyse("if chance: x = [4]"))
    sync.sent(later)
    calls = [sync.update(["x"], names, RANKS) for _ in range(100)]
    for call in calls:
        sync.sent(call)
    for each in (run, later):
        sync.ran(each, {rank: {"x": True} for rank in RANKS}, well=True)
    for call in calls:
        assert refreshed(sync, call) == set()
    assert steps_of_a_call(sync, names) < before + 100


def steps_of_a_call(sync: NamespaceSync, names: dict[str, Any]) -> int:
    """Return how many functions are called to prepare one more call."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    sync.sent(sync.update(["x"], names, RANKS))
    sys.setprofile(None)
    return count


# The loop does not stand still


class Slow:
    """Is pickled when it may, and says where."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.threads: list[str] = []

    def __reduce__(self) -> tuple[type, tuple[()]]:
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        assert self.may_end.wait(30)
        return object, ()


def test_the_loop_does_not_wait_for_a_pickle(sync) -> None:
    value = Slow()
    first = sync.update([], {}, RANKS)
    sync.sent(first)

    async def report() -> None:
        """Say all that the loop says while the user's thread is at pickling."""
        sync.ran(first, {0: {"x": True}}, well=True)
        sync.missed(first, 1, [])
        sync.remember(1, {"y": "digest"})
        sync.forget(2)
        sync.lost(first)
        assert sync.is_outdated(first)
        sync.shares_files = True
        value.may_end.set()  # never reached if one of these waited

    reported = event_loop.submit(_after(value.begun, report()))
    update = sync.update(["value"], {"value": value}, RANKS)
    reported.result(30)
    assert sync.shares_files
    assert sync.is_outdated(update)  # it was begun before the rank was lost
    assert not sync.is_outdated(sync.update([], {}, RANKS))


def test_the_loop_does_not_pickle(sync) -> None:
    value = Slow()
    value.may_end.set()
    update = sync.update(["value"], {"value": value}, RANKS)
    sync.sent(update)
    sync.forget(0)
    event_loop.wait(sync.refresh(update))
    here, *others = value.threads
    assert here == threading.current_thread().name
    assert others
    assert "sky-links" not in others


async def _after(event: threading.Event, then: Any) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)
    await then
