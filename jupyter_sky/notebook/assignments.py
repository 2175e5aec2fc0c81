"""Watches which names the notebook's own cells assign, so that clusters get those anew."""

from __future__ import annotations

from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.notebook.session import Session
from jupyter_sky.transport.names import CellNames, analyse
from jupyter_sky.transport.writes import Writes


class Assignments:
    """Tells the clusters of a notebook what was assigned here.

    That a value is another object, or has other content, tells it of most assignments; of
    ``x = 0`` in a cell that is run again, only the cell itself does.
    """

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell = shell
        self._session = session
        self._running: list[tuple[CellNames, Writes]] = []
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)

    def remove(self) -> None:
        """Stop watching."""
        self._shell.events.unregister("pre_run_cell", self._before)
        self._shell.events.unregister("post_run_cell", self._after)

    def _before(self, info: Any) -> None:
        names = _names_in(info)
        self._running.append((names, Writes(names.writes, self._shell.user_ns)))

    def _after(self, result: Any) -> None:
        if not self._running:  # it is the cell in which the extension was loaded
            return
        names, writes = self._running.pop()
        assigned = {
            name
            for name, anew in writes.bound(self._shell.user_ns).items()
            if anew or (result.success and name in names.surely)
        }
        if assigned:
            for cluster in self._session.known():
                cluster.outbox.assigned(assigned)


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
