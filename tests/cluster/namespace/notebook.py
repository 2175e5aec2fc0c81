"""A notebook beside a cluster: cells that run here, and cells that run there, as with the magic."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

from jupyter_sky.analysis.cell_names import analyse
from jupyter_sky.analysis.namespace_diff import NamespaceDiff
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.namespace.set_again import set_objects
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.transport.protocol.events import Display, Output


class Notebook:
    """Runs cells in a ``__main__`` of its own and on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.main = types.ModuleType("__main__")
        self.names = vars(self.main)

    def here(self, cell: str) -> None:
        """Run a cell in the notebook."""
        names = analyse(cell)
        writes = NamespaceDiff(self.names)
        file = f"<cell {hash(cell)}>"
        linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
        ends_well = False
        try:
            exec(compile(cell, file, "exec", dont_inherit=True), self.names)
            ends_well = True
        finally:
            bound = names.always_bound - names.only_augmented if ends_well else frozenset()
            changes = names.always_changed if ends_well else ()
            self.cluster.sync.set_again([*set_objects(changes, self.names)])
            there = bound & self.names.keys()
            self.cluster.sync.assigned(writes.changed() | there, self.names)
            self.cluster.sync.deleted(writes.deleted() | (bound - there))

    def start(
        self,
        cell: str,
        *,
        out: Sequence[str] = (),
        gather: Sequence[str] = (),
        ranks: Sequence[int] | None = None,
        show: Sequence[int] = (0,),
    ) -> RunHandle:
        """Start a cell on the ranks."""
        ranks = tuple(self.cluster.all_ranks if ranks is None else ranks)
        names = analyse(cell)
        update = self.cluster.sync.update(names.reads, self.names, ranks, cell=names)
        values = {rank: list(gather) for rank in ranks} if gather else {}
        if out:
            values = {**values, ranks[0]: [*out, *gather]}
        task = Task(ranks, code=cell, update=update, values=values, show=tuple(show))
        run = self.cluster.run(task)
        run.begin()
        return run

    def there(self, cell: str, **options: Any) -> list[dict[str, Any]]:
        """Run a cell on the ranks, bind what it was asked for, and return it by rank."""
        run = self.start(cell, **options)
        run.follow()
        values = run.values()
        bound = {name: values[run.task.ranks[0]][name] for name in options.get("out", ())}
        bound = dict(self.cluster.sync.merge(bound, self.names, run.task.ranks[0]))
        for name in options.get("gather", ()):
            bound[name] = [values[rank][name] for rank in run.task.ranks]
        self.names.update(bound)
        has = {rank: done.bound.keys() for rank, done in run.done.items()}
        self.cluster.sync.returned(bound, self.names, run.task.update, has)
        return [values[rank] for rank in sorted(values)]

    def ask(self, expression: str, **options: Any) -> list[Any]:
        """Return an expression's value on every rank."""
        run = self.start(f"_asked = {expression}", gather=["_asked"], **options)
        run.follow()
        values = run.values()
        return [values[rank]["_asked"] for rank in sorted(values)]

    def printed(self, cell: str) -> str:
        """Run a cell, and return what the first rank wrote to stderr."""
        events: list[Output | Display] = []
        run = self.start(cell)
        run.follow(events.append)
        run.values()
        return b"".join(
            event.data for event in events if isinstance(event, Output) and event.stream == "stderr"
        ).decode()

    def push(self, *names: str) -> None:
        """Send names as `%sky push` does."""
        ranks = tuple(self.cluster.all_ranks)
        update = self.cluster.sync.update(names, self.names, ranks, force=True)
        run = self.cluster.run(Task(ranks, code="", update=update))
        run.follow()
        run.values()

    def sent(self, cell: str) -> set[str]:
        """Return the names that would be sent for a cell."""
        names = analyse(cell)
        update = self.cluster.sync.update(
            names.reads, self.names, self.cluster.all_ranks, cell=names
        )
        return {name for group in update.groups for name in group["names"] if " " not in name}


def open_notebook(cluster: Cluster, patch: Any) -> Notebook:
    """Open a notebook on a cluster on which other tests have left names."""
    notebook = Notebook(cluster)
    patch.setitem(sys.modules, "__main__", notebook.main)
    state = cluster.sync._remote_state.now
    cluster.sync.assigned(set().union(*map(state.keys, cluster.all_ranks)), {})
    return notebook


def in_both(
    notebook: Notebook, begin: str, cells: Iterable[tuple[str, str]], names: Iterable[str], ask: str
) -> tuple[list[Any], Any]:
    """Run cells on both sides, and in one namespace, which shows what both should come to.

    Parameters
    ----------
    notebook
        The notebook with its cluster.
    begin
        What the notebook runs first.
    cells
        The cells, each after ``"here"`` or ``"there"``, the side on which it runs.
    names
        What ranks are sent at the beginning, and when they are asked.
    ask
        Code that binds ``_surveyed``.

    Returns
    -------
    list, Any
        What ranks have come to, and what the one namespace has.
    """
    plain: dict[str, Any] = {"__name__": "__main__"}
    exec(begin, plain)
    notebook.here(begin)
    read = ", ".join(names)
    notebook.there(read)
    for side, cell in cells:
        exec(cell, plain)
        (notebook.here if side == "here" else notebook.there)(cell)
    exec(ask, plain)
    notebook.there(f"{ask}\n_ = {read}")
    return notebook.ask("_surveyed"), plain["_surveyed"]
