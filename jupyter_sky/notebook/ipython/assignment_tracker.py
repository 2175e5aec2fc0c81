"""Watches which names the notebook's own cells assign or delete, so that clusters follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.analysis.cell_names import analyse
from jupyter_sky.analysis.namespace_diff import NamespaceDiff
from jupyter_sky.notebook.session import Session


@dataclass(frozen=True)
class _Running:
    """A cell that runs: the names that it surely binds or deletes, and what it has done so far."""

    surely: frozenset[str]
    writes: NamespaceDiff


class AssignmentTracker:
    """Tells the clusters of a notebook what was assigned and deleted here.

    That a value is another object, or has other content, tells it of most assignments; of
    ``x = 0`` in a cell that is run again, only the cell itself does.
    """

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell = shell
        self._session = session
        self._running: list[_Running | None] = []
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)

    def remove(self) -> None:
        """Stop watching."""
        self._shell.events.unregister("pre_run_cell", self._before)
        self._shell.events.unregister("post_run_cell", self._after)

    def take_note(self) -> None:
        """Tell what the cell that runs has done so far: what a run does comes after that."""
        if self._running and (cell := self._running[-1]):
            changed, deleted = cell.writes.changed(), cell.writes.deleted()
            self._tell(changed, deleted)
            rest = cell.surely - changed - deleted
            self._running[-1] = _Running(rest, NamespaceDiff(self._shell.user_ns))

    def _before(self, info: Any) -> None:
        code = getattr(info, "transformed_cell", None) or info.raw_cell or ""
        if code.lstrip().startswith(("%%sky", "get_ipython().run_cell_magic('sky'")):
            self._running.append(None)  # it does nothing here
        else:
            self._running.append(_Running(_surely_in(code), NamespaceDiff(self._shell.user_ns)))

    def _after(self, result: Any) -> None:
        # There is none of the cell in which the extension was loaded.
        cell = self._running.pop() if self._running else None
        if cell is None:
            return
        surely = cell.surely if result.success else frozenset()
        there = surely & self._shell.user_ns.keys()
        self._tell(cell.writes.changed() | there, cell.writes.deleted() | (surely - there))

    def _tell(self, assigned: set[str], deleted: set[str]) -> None:
        for cluster in self._session.known():
            if assigned:
                cluster.sync.assigned(assigned, self._shell.user_ns)
            if deleted:
                cluster.sync.deleted(deleted)


def _surely_in(code: str) -> frozenset[str]:
    """Return the names that a cell surely binds or deletes."""
    try:
        return analyse(code).always_bound
    except SyntaxError:
        return frozenset()
