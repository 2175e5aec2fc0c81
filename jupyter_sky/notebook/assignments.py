"""Watches which names the notebook's own cells assign or delete, so that clusters follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.notebook.session import Session
from jupyter_sky.transport.names import CellNames, analyse
from jupyter_sky.transport.writes import Writes


@dataclass(frozen=True)
class _Running:
    """A cell that runs: what it does to names, their values, and all names there were before."""

    names: CellNames
    writes: Writes
    before: frozenset[str]


class Assignments:
    """Tells the clusters of a notebook what was assigned and deleted here.

    That a value is another object, or has other content, tells it of most assignments; of
    ``x = 0`` in a cell that is run again, only the cell itself does.
    """

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell = shell
        self._session = session
        self._running: list[_Running] = []
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)

    def remove(self) -> None:
        """Stop watching."""
        self._shell.events.unregister("pre_run_cell", self._before)
        self._shell.events.unregister("post_run_cell", self._after)

    def _before(self, info: Any) -> None:
        names, namespace = _names_in(info), self._shell.user_ns
        writes = Writes(names.writes, namespace)
        self._running.append(_Running(names, writes, frozenset(namespace)))

    def _after(self, result: Any) -> None:
        if not self._running:  # it is the cell in which the extension was loaded
            return
        cell = self._running.pop()
        namespace = self._shell.user_ns
        surely = cell.names.surely if result.success else frozenset()
        bound = cell.writes.bound(namespace)
        assigned = {name for name, anew in bound.items() if anew or name in surely}
        # Whatever way it was: also `%reset`, or what a function does to `globals()`.
        deleted = (cell.before | surely) - namespace.keys()
        for cluster in self._session.known():
            if assigned:
                cluster.outbox.assigned(assigned)
            if deleted:
                cluster.outbox.deleted(deleted)


def _names_in(info: Any) -> CellNames:
    """Return what a cell does to the notebook's names; one that runs elsewhere does nothing."""
    nothing = CellNames(frozenset(), frozenset())
    code = getattr(info, "transformed_cell", None) or info.raw_cell or ""
    if code.lstrip().startswith(("%%sky", "get_ipython().run_cell_magic('sky'")):
        return nothing
    try:
        return analyse(code)
    except SyntaxError:
        return nothing
