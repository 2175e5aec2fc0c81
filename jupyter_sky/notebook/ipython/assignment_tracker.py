"""Finds which names the notebook's own cells assign or delete, and tells the clusters."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.analysis.cell_names import CellNames, analyse
from jupyter_sky.analysis.namespace_diff import NamespaceDiff
from jupyter_sky.analysis.object_changes import FunctionCall, ObjectChange
from jupyter_sky.cluster.namespace.items.item import class_key
from jupyter_sky.cluster.namespace.set_again import set_objects
from jupyter_sky.notebook.ipython.hooks import without_interrupts
from jupyter_sky.notebook.session import Session
from jupyter_sky.serialization.process import module_attributes
from jupyter_sky.serialization.user_modules import OF_MAIN


@dataclass(frozen=True)
class _Running:
    """A cell that is running.

    Attributes
    ----------
    surely
        The names that, by its syntax, it binds or deletes whenever it runs to its end.
    changed
        What it surely assigns in objects, and calls (`always_changed`).
    targets
        The attributes that it may assign.
    diff
        Tracks its changes of the namespace.
    shown
        The error of which IPython has shown the traceback last.
    """

    surely: frozenset[str]
    changed: frozenset[ObjectChange | FunctionCall]
    targets: frozenset[str]
    diff: NamespaceDiff
    shown: BaseException | None


class _Cells(threading.local):
    """The cells that run in a thread, the innermost last; ``None`` for what runs on the cluster."""

    def __init__(self) -> None:
        self.running: list[_Running | None] = []


class AssignmentTracker:
    """Tells the clusters of a notebook which names were assigned or deleted here.

    Most assignments are visible in the namespace: the value is another object, or has other
    content. ``x = 0`` in a cell that is run again is not, nor is ``counts["x"] = 0`` where it is 0
    here and not on the ranks, nor is ``args.step = 0``, so the cell's syntax is examined as well.

    Parameters
    ----------
    shell
        The shell of the notebook.
    session
        Its clusters.
    """

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell = shell
        self._session = session
        self._cells = _Cells()
        self._knows_earlier_cells = False
        shell.events.register("pre_run_cell", self._on_pre_run_cell)
        shell.events.register("post_run_cell", self._on_post_run_cell)

    def remove(self) -> None:
        """Stop tracking cells."""
        self._shell.events.unregister("pre_run_cell", self._on_pre_run_cell)
        self._shell.events.unregister("post_run_cell", self._on_post_run_cell)

    def flush(self) -> None:
        """Report what the running cell has done so far, before the effects of a run."""
        self._note_earlier_cells()
        running = self._cells.running
        if running and (cell := running[-1]):
            changed, deleted = cell.diff.changed(), cell.diff.deleted()
            self._tell(changed | self._attributes(cell), deleted)
            rest = cell.surely - changed - deleted
            # Whether it has changed its containers before or will after the run is not known.
            diff = NamespaceDiff(self._shell.user_ns)
            running[-1] = replace(cell, surely=rest, changed=frozenset(), diff=diff)

    @without_interrupts
    def _on_pre_run_cell(self, info: Any) -> None:
        self._note_earlier_cells()
        running = self._cells.running
        # Stop may come between a cell and its hooks: IPython does not tell that it has ended.
        while running and len(running) >= _depth():
            self._end(running.pop(), False)
        code = getattr(info, "transformed_cell", None) or info.raw_cell or ""
        if code.lstrip().startswith(("%%sky", "get_ipython().run_cell_magic('sky'")):
            running.append(None)  # its code runs on the cluster
        else:
            names = _analysed(code)
            diff = NamespaceDiff(self._shell.user_ns)
            surely = names.always_bound - names.only_augmented
            shown = _shown_error()
            running.append(_Running(surely, names.always_changed, names.targets, diff, shown))

    @without_interrupts
    def _on_post_run_cell(self, result: Any) -> None:
        running = self._cells.running
        # The cell that loaded the extension began before this was registered.
        if running:
            self._end(running.pop(), result is not None and result.success)
        if not running:  # a cell may run others
            for cluster in self._session.connected_clusters():
                cluster.sync.cell_ended()

    def _end(self, cell: _Running | None, is_success: bool) -> None:
        """Report what a cell has done."""
        if cell is None:
            return
        # `%%capture`, and `%%time` of older versions, show the error of their code and end well.
        is_success = is_success and cell.shown is _shown_error()
        surely = cell.surely if is_success else frozenset()
        assigned = {*surely} & self._shell.user_ns.keys()
        clusters = self._session.connected_clusters()
        if is_success and clusters:
            objects = [*set_objects(cell.changed, self._shell.user_ns)]
            for cluster in clusters if objects else ():
                cluster.sync.set_again(objects)
        assigned |= cell.diff.changed() | self._attributes(cell)
        assigned |= self._classes(cell)
        self._tell(assigned, cell.diff.deleted() | (surely - assigned))

    def _note_earlier_cells(self) -> None:
        """Note what was set in modules up to the end of the cell that has loaded the extension."""
        if self._knows_earlier_cells:
            return
        self._knows_earlier_cells = True
        for code in self._shell.history_manager.input_hist_parsed:
            module_attributes.note(_analysed(code).targets, self._shell.user_ns)

    def _classes(self, cell: _Running) -> set[str]:
        """Return the keys of classes that a cell has defined, maybe as they were before."""
        names = cell.diff.changed() if self._session.connected_clusters() else ()
        keys = (class_key(self._shell.user_ns.get(name)) for name in names)
        return {key for key in keys if key}

    def _attributes(self, cell: _Running) -> frozenset[str]:
        """Return the attributes of modules that a cell has assigned, by their full names."""
        return module_attributes.note(cell.targets, self._shell.user_ns)

    def _tell(self, assigned: set[str], deleted: set[str]) -> None:
        deleted = deleted - OF_MAIN  # `%reset` deletes them here, and ranks have their own
        for cluster in self._session.connected_clusters():
            if assigned:
                values = {**self._shell.user_ns, **module_attributes.values()}
                cluster.sync.assigned(assigned, values)
            if deleted:
                cluster.sync.deleted(deleted)


def _shown_error() -> BaseException | None:
    return getattr(sys, "last_value", None)


def _depth() -> int:
    """Return how many cells run in this thread, by the frames of IPython that run them."""
    depth = 0
    frame: FrameType | None = sys._getframe()
    while frame:
        depth += frame.f_code is InteractiveShell.run_cell_async.__code__
        frame = frame.f_back
    return depth


def _analysed(code: str) -> CellNames:
    try:
        return analyse(code)
    except SyntaxError:
        return CellNames()
