"""The magics: ``%%sky`` runs a cell on a cluster, ``%sky`` looks after clusters."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class

from jupyter_sky.analysis.cell_names import CellNames, analyse
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import CellPlace, Task
from jupyter_sky.notebook.commands.dispatch import Commands
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.errors import InvalidCell, advise
from jupyter_sky.notebook.ipython.assignment_tracker import AssignmentTracker
from jupyter_sky.notebook.kernel import is_leaving
from jupyter_sky.notebook.options.definitions import CellOptions, HelpRequested, parse_cell
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.output.progress import NoticeLine, SendingLine
from jupyter_sky.notebook.output.renderer import Renderer
from jupyter_sky.notebook.results import bind
from jupyter_sky.notebook.session import Session
from jupyter_sky.notebook.validation import check_names, choose_ranks
from jupyter_sky.serialization import cell_sources


@magics_class
class SkyMagics(Magics):
    """``%%sky`` and ``%sky``."""

    def __init__(
        self,
        shell: InteractiveShell,
        session: Session,
        settings: Sky,
        commands: Commands,
        assignments: AssignmentTracker,
    ) -> None:
        super().__init__(shell)
        self.session = session
        self._assignments = assignments
        self._settings = settings
        self._commands = commands

    @line_cell_magic
    def sky(self, line: str, cell: str | None = None) -> Any:
        """Run a cell on a cluster (``%%sky``), or look after clusters (``%sky``)."""
        try:
            if cell is None:
                return self._commands.run(line)
            return self._run(parse_cell(line, self._settings.of_runs()), cell)
        except HelpRequested as asked:
            print(asked.text)
        return None

    def _run(self, options: CellOptions, cell: str) -> BackgroundRun | None:
        place = _place(self.shell)
        names = _analysed(cell, place)
        needed = self._needed(options, names)
        cluster = self.session.cluster(options)
        ranks = choose_ranks(cluster, options.ranks, "--ranks")
        shown = _shown(cluster, options.stdout, ranks)
        self._assignments.take_note()
        limit = None if options.allow_large else self._settings.large
        update = cluster.sync.update(needed, self.shell.user_ns, ranks, cell=names, limit=limit)
        sending = SendingLine(self.shell, cluster, update.sizes)
        sending.update(0, update.size)
        run = cluster.run(
            Task(
                ranks=ranks,
                code=cell,
                place=place,
                update=update,
                values=_asked_for(options, ranks),
                show=shown,
                title=_title(cell),
            )
        )
        finish = partial(self._bind, options, cluster, run)
        if options.background:
            return BackgroundRun(run, f"{cluster.name} · {_title(cell)}", finish, options.timeout)
        renderer = Renderer(self.shell, shown)
        try:
            run.follow(
                lambda event: renderer.render(event, flush=run.nothing_waits),
                options.timeout,
                sending.update,
                NoticeLine(self.shell, cluster.name).say,
                partial(is_leaving, self.shell),
            )
        finally:
            renderer.finish()
            self.session.panels.finish(cluster, run)
        try:
            finish(run.values())
        except RemoteError as error:
            advise(error, self.shell.user_ns)
            raise
        return None

    def _needed(self, options: CellOptions, names: CellNames) -> frozenset[str]:
        """Return the names that are sent for a cell."""
        if options.in_names is None:
            return names.reads
        check_names(options.in_names, self.shell.user_ns, "--in")
        return frozenset(options.in_names)

    def _bind(
        self,
        options: CellOptions,
        cluster: Cluster,
        run: RunHandle,
        values: dict[int, dict[str, Any]],
    ) -> dict[str, Any]:
        ranks = run.task.ranks
        bound: dict[str, Any] = {}
        for name in options.out:
            bound[name] = values[ranks[0]][name]
        for name in options.gather:
            bound[name] = [values[rank][name] for rank in ranks]
        bind(self.shell, cluster, run, bound)
        return bound


def _place(shell: InteractiveShell) -> CellPlace:
    """Return where the code of the cell that runs now stands in it."""
    title = ""
    frame = sys._getframe().f_back
    while frame:
        title = cell_sources.title(frame.f_code.co_filename, shell.user_ns) or title
        frame = frame.f_back
    typed = (shell.history_manager.input_hist_raw or [""])[-1]
    code = typed.lstrip()
    # `%sky auto` puts no line there that the person could see.
    above = typed.removesuffix(code).count("\n") + 1 if code.startswith("%%sky") else 0
    return CellPlace(title, above)


def _analysed(cell: str, place: CellPlace) -> CellNames:
    """Return the names that a cell uses; one that does not compile goes no further."""
    try:
        return analyse(cell)
    except SyntaxError as error:
        raise InvalidCell(error, place) from None


def _title(cell: str) -> str:
    """Return the first line that does something, by which a person knows the cell again."""
    lines = [line.strip() for line in cell.splitlines() if line.strip()]
    telling = (line for line in lines if not line.startswith(("import ", "from ", "#", "@")))
    return next(telling, lines[0] if lines else "").rstrip(":")[:60]


def _shown(cluster: Cluster, chosen: Any, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks whose output is shown; of a run without the head, its first rank's."""
    if chosen is None and ranks:
        return (ranks[0],)
    return choose_ranks(cluster, chosen, "--stdout")


def _asked_for(options: CellOptions, ranks: Sequence[int]) -> dict[int, list[str]]:
    if not options.out and not options.gather:
        return {}
    gathered = list(options.gather)
    asked = dict.fromkeys(ranks, gathered) if gathered else {}
    asked[ranks[0]] = list(dict.fromkeys([*options.out, *gathered]))
    return asked
