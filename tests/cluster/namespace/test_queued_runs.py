"""Runs that wait while the notebook goes on read what they would if each ran at once.

Cells are asked for, have their turns later, and may or may not bind what they could; the notebook
assigns in between. In whichever order that happens, the last assignment before a cell was asked
for is the one that it reads: the notebook's, or that of a run before it, on each rank its own.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import __main__
from jupyter_sky.analysis.cell_names import CellNames, analyse
from jupyter_sky.cluster.namespace.sync import NamespaceSync
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from tests.cluster.namespace.notebook import Notebook, open_notebook
from tests.waiting import PATIENCE

NAMES = "abc"
RANKS = (0, 1)
MISSING = "no value"


@dataclass(frozen=True)
class QueuedCell:
    """A cell with what it does.

    Attributes
    ----------
    reads, calls
        The names that it reads, itself and in a function of the notebook.
    always
        Those that it binds in any case.
    maybe
        Those that it may bind, each with whether a rank does.
    keep
        Whether its values are kept for ranks that lose something, as for a cell, not for a call.
    """

    reads: frozenset[str]
    calls: frozenset[str]
    always: frozenset[str]
    maybe: dict[str, tuple[bool, ...]]
    keep: bool

    def names(self) -> CellNames:
        lines = [f"print({name})" for name in sorted(self.reads)]
        lines += [f"read_{name}()" for name in sorted(self.calls)]
        lines += [f"{name} = own()" for name in sorted(self.always)]
        lines += [f"if chance_{name}: {name} = own()" for name in sorted(self.maybe)]
        return analyse("\n".join(lines) or "pass")

    def bound_by(self, rank: int) -> set[str]:
        return {*self.always, *(name for name, does in self.maybe.items() if does[rank])}


@dataclass
class Asked:
    """A run that was asked for: what it is sent, and what its ranks should read and will bind."""

    cell: QueuedCell
    update: NamespaceUpdate
    reads: list[dict[str, int]]
    binds: list[dict[str, int]]


@dataclass
class Both:
    """A notebook with its ranks, beside ranks on which each cell has run when it was asked for."""

    sync: NamespaceSync = field(default_factory=NamespaceSync)
    ranks: list[dict[str, int]] = field(default_factory=lambda: [{} for _ in RANKS])
    at_once: list[dict[str, int]] = field(default_factory=lambda: [{} for _ in RANKS])
    queue: list[Asked] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000))

    def assign(self, name: str) -> None:
        value = next(self.numbers)
        setattr(__main__, name, value)
        self.sync.assigned([name], vars(__main__))
        for rank in self.at_once:
            rank[name] = value

    def ask(self, cell: QueuedCell) -> None:
        names, there = cell.names(), vars(__main__)
        update = self.sync.update(names.reads, there, RANKS, cell=names, keep=cell.keep)
        self.sync.sent(update)
        binds = [{name: next(self.numbers) for name in cell.bound_by(rank)} for rank in RANKS]
        self.queue.append(Asked(cell, update, [dict(each) for each in self.at_once], binds))
        for rank, bound in zip(self.at_once, binds, strict=True):
            rank.update(bound)

    def ask_for(self, cell: str) -> NamespaceUpdate:
        names = analyse(cell)
        update = self.sync.update(names.reads, vars(__main__), RANKS, cell=names)
        self.sync.sent(update)
        return update

    def refresh(self, update: NamespaceUpdate) -> None:
        while self.sync.is_outdated(update):
            asyncio.run(self.sync.refresh(update))

    def end(self, update: NamespaceUpdate, *bound: str) -> None:
        self.refresh(update)
        names = dict.fromkeys(bound, True)
        self.sync.ran(update, dict.fromkeys(RANKS, names), well=True)

    def have_turn(self) -> None:
        asked = self.queue.pop(0)
        self.refresh(asked.update)
        for rank, has in enumerate(self.ranks):
            arrive(asked.update, rank, has)
            for name in asked.cell.reads | asked.cell.calls:
                assert has.get(name, MISSING) == asked.reads[rank][name], (rank, name)
        bound: dict[int, dict[str, bool]] = {}
        for rank, has in enumerate(self.ranks):
            before = dict(has)
            has.update(asked.binds[rank])
            watched = asked.update.watched & has.keys()
            bound[rank] = {name: has[name] != before.get(name) for name in watched}
        self.sync.ran(asked.update, bound, well=True)


def arrive(update: NamespaceUpdate, rank: int, has: dict[str, int]) -> None:
    """Do what a rank does with what it is sent before a run."""
    for name in update.outdated.get(rank, ()):
        has.pop(name, None)
    for group in update.groups:
        if rank in group["ranks"] and group["names"][0] in NAMES:
            value: Any = pickle.loads(group["packed"]["stream"])
            values = value if group["together"] else [value]
            has.update(zip(group["names"], values, strict=True))


names = st.frozensets(st.sampled_from(NAMES), max_size=2)
chances = st.tuples(*(st.booleans() for _ in RANKS))
chosen = st.dictionaries(st.sampled_from(NAMES), chances, max_size=2)
cells = st.builds(QueuedCell, names, names, names, chosen, st.booleans())
steps = st.one_of(st.sampled_from(NAMES), st.none(), cells, cells)


@pytest.fixture(scope="module", autouse=True)
def functions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setattr(__main__, name, 0, raising=False)
            made: dict[str, Any] = {}
            code = compile(f"def read_{name}(): return {name}", "<cell>", "exec")
            exec(code, vars(__main__), made)
            patch.setattr(__main__, f"read_{name}", made[f"read_{name}"], raising=False)
        yield


@settings(max_examples=300)
@given(st.lists(steps, max_size=14))
def test_a_run_that_waits_reads_what_it_would_at_once(program: list[Any]) -> None:
    both = Both()
    both.sync.shares_files = True
    for name in NAMES:
        both.assign(name)
    for step in program:
        match step:
            case None if both.queue:
                both.have_turn()
            case str():
                both.assign(step)
            case QueuedCell():
                both.ask(step)
    while both.queue:
        both.have_turn()


@pytest.fixture
def notebook(shared: Any, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return open_notebook(shared.cluster, monkeypatch)


def test_what_a_run_before_may_bind_leaves_with_its_cell(notebook: Notebook, held_up: Any) -> None:
    notebook.here("import numpy as np\ndata = np.zeros(1_000_000)")
    notebook.start("held_up()\nif rank < 0: data = None")
    run, is_over = notebook.start("total = float(data.sum())", gather=["total"]), threading.Event()
    run.listen(lambda event: None, is_over.set)  # returns once its data is there
    notebook.here("data[:] = 1")
    held_up()
    assert is_over.wait(PATIENCE)
    assert [values["total"] for values in run.values().values()] == [0.0] * 4


def test_a_cell_that_waits_reads_what_was_set_in_place_before(
    notebook: Notebook, held_up: Any
) -> None:
    notebook.here("import numpy as np\npoint = np.zeros(3)")
    notebook.there("point[0] += 1")
    notebook.start("held_up()\nfor point in (): pass")
    notebook.here("point[0] = 0")
    run = notebook.start("first = float(point[0])", gather=["first"])
    held_up()
    run.follow()
    assert [values["first"] for values in run.values().values()] == [0.0] * 4


@pytest.fixture
def both() -> Both:
    found = Both()
    found.sync.shares_files = True
    for name in NAMES:
        found.assign(name)
    return found


def test_a_former_value_that_was_sent_late_is_not_taken_for_that_of_now(both: Both) -> None:
    reader = both.ask_for("class Reader:\n  def read(self): return a\nreader, first = Reader(), a")
    both.end(reader, "Reader", "reader", "first")
    both.assign("a")
    before, waits = both.ask_for("for a in (): pass"), both.ask_for("second = a")
    both.assign("a")
    both.end(before)
    both.end(waits, "second")
    assert [group["names"] for group in both.ask_for("reader.read()").groups] == [["a"]]


def test_a_function_that_the_notebook_replaces_needs_nothing_any_more(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, waits = both.ask_for("for a in (): pass"), both.ask_for("a\ndef read(): return b")
    monkeypatch.setattr(__main__, "read", int, raising=False)
    both.sync.assigned(["read"], vars(__main__))
    both.end(before)
    both.end(waits, "read")
    assert [group["names"] for group in both.ask_for("read()").groups] == [["read"]]


def test_what_a_later_cell_binds_to_the_name_of_an_import_may_need_names(both: Both) -> None:
    before, waits = both.ask_for("for a in (): pass"), both.ask_for("a\nimport math as reader")
    later = both.ask_for("class Reader:\n  def read(self): return b\nreader = Reader()")
    both.end(before)
    both.end(waits, "reader")
    both.end(later, "Reader", "reader")
    both.assign("b")
    assert [group["names"] for group in both.ask_for("reader.read()").groups] == [["b"]]
