"""Attempts at a cell: with ``--retry`` it runs again if a rank or a node was lost.

Each attempt is a separate run, whose result stays in the cell. Its ranks are new processes, so that
all begin in the same state: one of them has lost its variables, so the others drop theirs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted, TimedOut
from jupyter_sky.cluster.loss import Loss, loss_of_trouble
from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.shared_turn import SharedTurn
from jupyter_sky.cluster.runs.task import Attempt
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_list
from jupyter_sky.notebook.cells.cell import Cell
from jupyter_sky.notebook.cells.lost_clusters import start_again
from jupyter_sky.notebook.errors import not_brought
from jupyter_sky.notebook.output.follow import follow
from jupyter_sky.notebook.output.progress import SendingLine
from jupyter_sky.notebook.profiling.recorded import show_records
from jupyter_sky.notebook.session import Session
from jupyter_sky.transport import event_loop


def _print(text: str) -> None:
    print(text, flush=True)


class Attempts:
    """The attempts at one cell.

    Parameters
    ----------
    cell
        The cell.
    cluster
        The cluster of the first attempt.
    say
        Tells the user what was lost.

    Attributes
    ----------
    cluster
        The present cluster: another one of the same name, if the first was lost.
    """

    def __init__(self, cell: Cell, cluster: Cluster, say: Callable[[str], object] = _print) -> None:
        self._cell = cell
        self.cluster = cluster
        self._say = say
        options = cell.options
        self._attempt = Attempt(1, 1 + (options.retry or 0), timeout=options.timeout)
        self._turn = SharedTurn() if options.retry else None
        self._began = time.monotonic()
        # In the background the notebook may change its values, but all attempts must begin alike.
        self._kept: ItemCollector | None = None

    def begin(self) -> RunHandle:
        """Return the first run."""
        if self._attempt.limit == 1:
            return self._cell.make_run(self.cluster, self._attempt)
        if lacking := self._lacking():
            print(
                f"--retry: a further attempt begins without {format_list(lacking)}, which only "
                "ranks have, from earlier cells: define them in this cell, or in the notebook",
                file=sys.stderr,
            )
        begun = self._cell.make_run(self.cluster, self._attempt, self._turn)
        self._kept = begun.task.update.kept
        return begun

    def _lacking(self) -> list[str]:
        """Return the names that the cell reads and that new processes will not have."""
        cell, sync = self._cell, self.cluster.sync
        there = {name for rank in self.cluster.all_ranks for name in sync.names_of(rank)}
        return sorted((there & cell.names.reads) - (cell.needed & cell.namespace.keys()))

    def run_here(self, session: Session) -> RunHandle:
        """Run the cell and show its output, until an attempt has not lost anything.

        Returns
        -------
        RunHandle
            The last run, which has ended.

        Raises
        ------
        Interrupted
            If Ctrl-C has stopped it.
        TimedOut
            If the time limit of all attempts together has passed.
        """
        run = self.begin()
        try:
            while True:
                self._follow(session, run)
                again = self.next_after(run, session)
                if again is None:
                    return run
                run = again
        finally:
            if self._turn:
                event_loop.call(self._turn.end)

    def next_after(self, run: RunHandle, session: Session | None) -> RunHandle | None:
        """Return the next attempt after a run that has ended.

        Parameters
        ----------
        run
            The run.
        session
            Starts a new cluster if all of it was lost; without a session, there is no further
            attempt then.

        Returns
        -------
        RunHandle or None
            ``None`` if there is no further attempt: the run has not lost anything, or was the last.

        Raises
        ------
        SkyError
            If the cluster does not start again.
        """
        if self._attempt.number == 1:
            self._began = run.began  # the time that it waited for its turn does not count
        self._attempt = replace(self._attempt, earlier=(*self._attempt.earlier, run.id))
        loss, is_new = run.loss, False
        while loss is not None and self._may_go_on(loss, session):
            try:
                if not self.cluster.alive:
                    assert session is not None
                    self.cluster = start_again(session, self.cluster, loss.nodes)
                    is_new = True
                elif not is_new:
                    run.renew_ranks()
                return self._cell.make_run(self.cluster, self._attempt, self._turn, self._kept)
            except SkyError as trouble:
                # Another rank or node may have been lost meanwhile.
                loss = loss_of_trouble(trouble, self._attempt)
                if loss is None:
                    raise
        return None

    def seconds_left(self) -> float | None:
        """Return the time left for all attempts, if it is limited.

        Raises
        ------
        TimedOut
            If no time is left.
        """
        limit = self._attempt.timeout
        if limit is None:
            return None
        left = self._began + limit - time.monotonic()
        if left <= 0:
            raise TimedOut(f"the time limit of {limit:g} s is over: the cell is not run again.")
        return left

    def _may_go_on(self, loss: Loss, session: Session | None) -> bool:
        """Count a loss, tell the user, and return whether there is another attempt."""
        before, name = self._attempt, self.cluster.name
        if before.limit == 1:
            return False
        if before.number == before.limit:
            self._say(f"{name}: {loss.sentence}; that was the last of {before.limit} attempts")
            return False
        if session is None and not self.cluster.alive:
            self._say(f"{name}: {loss.sentence}; a run in the background starts no new cluster")
            return False
        self._attempt = replace(
            before,
            number=before.number + 1,
            checkpoints=loss.checkpoints,
            metrics=loss.metrics,
        )
        begins = "" if loss.checkpoint else " from the start"
        which = f"attempt {self._attempt.number} of {before.limit}"
        self._say(f"{name}: {loss.sentence}; {which} begins{begins}")
        return True

    def _follow(self, session: Session, run: RunHandle) -> None:
        cell = self._cell
        sending = SendingLine(cell.shell, self.cluster.name, run.task.update.sizes)
        try:
            follow(
                cell.shell,
                session.panels,
                self.cluster,
                run,
                self.seconds_left(),
                sending,
                display=cell.options.display,
            )
        except (Interrupted, TimedOut) as error:
            if run.finished and (advice := not_brought(self.cluster, cell.options.out)):
                error.args = (f"{error} {advice}",)
            raise
        finally:
            if run.finished or run.stopped:
                show_records(cell.shell, self.cluster, run)
