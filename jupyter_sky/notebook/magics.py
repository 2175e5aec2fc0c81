"""The magics: ``%%sky`` runs a cell on a cluster, ``%sky`` runs a command."""

from __future__ import annotations

import sys
from functools import partial

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class

from jupyter_sky.analysis.cell_names import CellNames, analyse
from jupyter_sky.api.prompts.keyboard import has_keyboard
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted, RemoteError
from jupyter_sky.cluster.runs.task import CellPlace
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.cells.attempts import Attempts
from jupyter_sky.notebook.cells.background import begin_in_background
from jupyter_sky.notebook.cells.cell import Cell
from jupyter_sky.notebook.cells.queued_run import QueuedRun
from jupyter_sky.notebook.cells.results import check_bound_once
from jupyter_sky.notebook.commands.dispatch import Dispatcher
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.errors import InvalidCell, advise, check_names, not_brought
from jupyter_sky.notebook.ipython.assignment_tracker import AssignmentTracker
from jupyter_sky.notebook.kernel import cell_id, lines_above
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.lines import parse_cell
from jupyter_sky.notebook.options.parser import HelpRequested
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.profiling.recorded import wanted_records
from jupyter_sky.notebook.project.volumes import still_written, write_back
from jupyter_sky.notebook.project.workdir import Workdirs, say_written
from jupyter_sky.notebook.scripts.node_script import find_folder
from jupyter_sky.notebook.scripts.run import run_shell_cell
from jupyter_sky.notebook.session import Session
from jupyter_sky.serialization import cell_sources
from jupyter_sky.transport.protocol.debugging import Debugging


@magics_class
class SkyMagics(Magics):  # type: ignore[misc, unused-ignore]
    """``%%sky`` and ``%sky``.

    Parameters
    ----------
    shell
        The shell of the notebook.
    session
        Its clusters.
    settings
        The defaults of options.
    commands
        Runs the line of a ``%sky``.
    assignments
        Tells the clusters which names the notebook's own cells have assigned.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        session: Session,
        settings: Sky,
        commands: Dispatcher,
        assignments: AssignmentTracker,
    ) -> None:
        super().__init__(shell)
        self._session = session
        self._settings = settings
        self._commands = commands
        self._assignments = assignments
        self._workdirs = Workdirs()

    @line_cell_magic  # type: ignore[untyped-decorator, unused-ignore]
    def sky(self, line: str, cell: str | None = None) -> object:
        """Run a cell on a cluster (``%%sky``), or a command (``%sky``)."""
        try:
            if cell is None:
                return self._commands.run_line(line)
            return self._run(parse_cell(line, self._settings.run_defaults()), cell)
        except HelpRequested as asked:
            print(asked.text)
        except Interrupted:
            raise
        except KeyboardInterrupt:  # before its run, or between two attempts: not in our traceback
            raise Interrupted("the cell was stopped.") from None
        return None

    @line_magic("%sky")  # type: ignore[untyped-decorator, unused-ignore]
    def misplaced(self, line: str) -> None:
        """Say where ``%%sky`` belongs: IPython takes it for a line magic below other lines."""
        own = f"%%sky {line}".rstrip()
        raise UsageError(
            f"`%%sky` must be the first line of its cell: move `{own}` above the comments and "
            "code before it."
        )

    def _run(self, options: CellOptions, cell: str) -> BackgroundRun | QueuedRun | None:
        records = wanted_records(options)
        if options.sh:
            return run_shell_cell(self.shell, self._session, options, cell)
        check_bound_once({"--out": options.out, "--gather": options.gather})
        folder = find_folder(options.workdir) if options.workdir is not None else None
        place = _cell_place(self.shell, cell)
        names = _analysed(cell, place)
        needed = self._needed(options, names)
        start = self._session.start_behind(options)
        cluster = None if start else self._session.cluster(options)
        self._assignments.flush()
        namespace = self.shell.user_ns
        work = Cell(
            shell=self.shell,
            options=options,
            code=cell,
            place=place,
            names=names,
            needed=needed,
            # A retry uses the values of the time when the cell was run.
            namespace=dict(namespace) if options.retry or start else namespace,
            limit=self._settings.size_limit(options.allow_large),
            folder=folder,
            workdirs=self._workdirs,
            records=records,
            debugging=self._debugging(options),
        )
        if start:
            begin = partial(begin_in_background, work, self._session.panels)
            return QueuedRun(self._session, start, options, work.title, begin)
        assert cluster
        if options.background:
            return begin_in_background(work, self._session.panels, cluster)
        self._run_here(work, cluster)
        return None

    def _run_here(self, work: Cell, cluster: Cluster) -> None:
        """Run a cell in the foreground, and bind what it brings back."""
        options = work.options
        attempts = Attempts(work, cluster)
        run = attempts.run_here(self._session)
        cluster = attempts.cluster
        is_stopped = False
        try:
            work.bind(cluster, run, run.values())
        except Interrupted as stop:
            is_stopped = True
            more = [not_brought(cluster, options.out)]
            if cluster.alive and run.finished:
                more.append(still_written(cluster))
            stop.args = (" ".join([str(stop), *filter(None, more)]),)
            raise
        except RemoteError as error:
            asked_by = dict.fromkeys(options.out, "--out")
            asked_by |= dict.fromkeys(options.gather, "--gather")
            advise(error, cluster, self.shell.user_ns, asked_by)
            advice = [error.advice, not_brought(cluster, options.out, error)]
            error.advice = "\n".join(filter(None, advice))
            raise
        finally:
            if cluster.alive and run.finished and not is_stopped:
                say_written(self.shell, cluster, run.task.ranks)
                write_back(self.shell, cluster)

    def _needed(self, options: CellOptions, names: CellNames) -> frozenset[str]:
        """Return the names to send for a cell."""
        if options.in_names is None:
            # What is asked for may be changed by what the cell reads, which refers to it, or stay
            # as it is here where only a branch binds it. A list of all ranks' values does not.
            out, gather = (
                {name.partition(":")[0] for name in asked}
                for asked in (options.out, options.gather)
            )
            return names.reads | (out - names.always_bound) | (gather - names.writes)
        cluster = self._session.connected(options.cluster)
        check_names(options.in_names, self.shell.user_ns, "--in", cluster)
        return frozenset(options.in_names)

    def _debugging(self, options: CellOptions) -> Debugging:
        keyboard = has_keyboard() and not options.background
        if options.pdb and not keyboard:
            where = "a run in the background" if options.background else "this page"
            print(f"--pdb: {where} takes no input, so no rank stops at an error", file=sys.stderr)
        return {"keyboard": keyboard, "stops": options.pdb, "looks_at": None}


def _cell_place(shell: InteractiveShell, code: str) -> CellPlace:
    """Return where the code below a ``%%sky`` stands in the notebook, for its tracebacks."""
    files: list[str] = []
    frame = sys._getframe().f_back
    while frame:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    # The outermost that is a cell: others are run by that one.
    title = cell_sources.first_title(reversed(files), shell.user_ns)
    typed = (shell.history_manager.input_hist_raw or [""])[-1]
    # Other magics may be above `%%sky`; the line that `%sky auto` puts there is not in the cell.
    before = typed.rstrip().removesuffix(code.rstrip())
    above = before.count("\n") if before != typed.rstrip() else 0
    return CellPlace(title, lines_above(shell) + above, cell_id(shell))


def _analysed(cell: str, place: CellPlace) -> CellNames:
    """Return the names that a cell uses.

    Raises
    ------
    InvalidCell
        If it does not compile.
    """
    try:
        return analyse(cell)
    except SyntaxError:
        pass
    # Python's own sentences name lines, too ("after 'if' statement on line 2"): they count those
    # above the cell only if it is compiled below as many.
    try:
        return analyse("\n" * place.above + cell)
    except SyntaxError as error:
        raise InvalidCell(error, place) from None
