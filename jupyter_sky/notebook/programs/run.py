"""``jupyter sky run``: runs a notebook or script in a terminal, in CI or under cron.

Its cells run in a shell of this process, one after the other, and clusters that it starts end with
it, whether it succeeds, fails or is stopped, unless ``--keep`` is given or others have runs there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from IPython.core.interactiveshell import ExecutionResult
from traitlets.config import Config

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runs.handle import STOPPED_WITHIN
from jupyter_sky.errors import ScriptFailed, SkyError, UsageError, as_in_command, exit_status
from jupyter_sky.formatting import format_cost, format_count, format_elapsed
from jupyter_sky.notebook import extension
from jupyter_sky.notebook.options.definitions import PROGRAM_DEFAULTS, CellOptions
from jupyter_sky.notebook.options.local_paths import with_absolute_paths
from jupyter_sky.notebook.output import background_run
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.output.unread import discard_unread, is_unread
from jupyter_sky.notebook.places import stays_up
from jupyter_sky.notebook.programs.cells import SourceCell, read_cells
from jupyter_sky.notebook.programs.shell import ProgramShell, exit_of, is_of_pipe
from jupyter_sky.notebook.programs.signals import stopped_by_signals
from jupyter_sky.notebook.session import Session

_FAILED, _MISUSED = 1, 2
_DEFAULTS = [each.removeprefix("--") for each in PROGRAM_DEFAULTS]


def run_program(
    name: str, arguments: Sequence[str], options: CellOptions, keep: bool, config: Config
) -> int:
    """Run a notebook or script, and return the exit status of this process.

    Parameters
    ----------
    name
        Its file.
    arguments
        Its arguments in ``sys.argv``, here and on the ranks.
    options
        Options that override those of cells, except those about how a single cell runs.
    keep
        Whether clusters that it starts stay up after its end, also where a signal stops it.
    config
        The configuration of the shell.

    Returns
    -------
    int
        0; 1 or 2 after an error; the status of ``sys.exit`` or of a script; or 128 plus the number
        of the signal that stopped it.

    Raises
    ------
    UsageError
        If it cannot be read, or has no cell that the options could apply to.
    """
    path = Path(name).expanduser().absolute()
    cells = read_cells(path)
    given = dict(with_absolute_paths(options).given)  # from the folder of the command
    if given and not any("%sky" in cell.text or "run_cell_magic" in cell.text for cell in cells):
        raise UsageError(
            f"no cell of {path.name} begins with `%%sky`, so that none would run on a cluster: put "
            "it above those that should, or leave the options out."
        )
    # Python runs a script in the folder of the command; Jupyter, and editors with `# %%`, run cells
    # in that of their file.
    runs_here = any(cell.is_script for cell in cells)
    if not runs_here:
        os.chdir(path.parent)
    shell = _make_shell(path, (name if runs_here else path.name, *arguments), config)
    defaults = {each: given.pop(each) for each in _DEFAULTS if each in given}
    session = extension.load(shell, given).session
    for each, value in defaults.items():
        setattr(session.settings, each, value)
    program = _Program(path, cells, shell, session, keep)
    session.observers.append(program)
    shell.is_stopped = lambda: program.signal is not None
    with stopped_by_signals(program.on_signal):
        program.run()
    return program.status


def _make_shell(path: Path, words: tuple[str, ...], config: Config) -> ProgramShell:
    """Make this process run a file as Python would that is started with these words."""
    # It may belong to a notebook whose cell has started this process.
    os.environ.pop("JPY_SESSION_NAME", None)
    # As for Python: the modules are beside the file itself, not beside a link to it.
    sys.path.insert(0, str(path.resolve().parent))
    # IPython's advice to interactive users.
    warnings.filterwarnings("ignore", message="To exit: use 'exit'")
    shell: ProgramShell = ProgramShell.instance(config=config)
    shell.program, shell.words = path.stem, words
    if path.suffix == ".py":
        shell.script, shell.user_ns["__file__"] = path, str(path)
    sys.argv = list(words)
    return shell


class _Program:
    """Runs the cells of a file.

    Parameters
    ----------
    path, cells
        The file and its cells.
    shell, session
        Where they run.
    keep
        As of `run_program`.

    Attributes
    ----------
    signal
        The signal that stopped it, if any.
    status
        The exit status so far.
    """

    def __init__(
        self,
        path: Path,
        cells: list[SourceCell],
        shell: ProgramShell,
        session: Session,
        keep: bool,
    ) -> None:
        self._path = path
        self._cells = cells
        self._shell = shell
        self._session = session
        self._keep = keep
        self._clusters: dict[str, Cluster] = {}
        self._spent: dict[str, float] = defaultdict(float)
        self._began = time.monotonic()
        self._ran = 0
        self._shown: set[BackgroundRun] = set()
        self._is_closing = False  # its clusters are being ended, which signals do not interrupt
        self.signal: int | None = None
        self.status = 0
        # Where a cell ends with a run, its output so far is not shown: `_show_output` shows all.
        formatter = shell.display_formatter.ipython_display_formatter
        formatter.for_type(BackgroundRun, lambda run: print(repr(run)))

    # Notifications of the session

    def connected(self, cluster: Cluster, is_new: bool) -> None:
        """Remember a cluster that was started here: it ends with the program."""
        if not is_new:
            return
        former = self._clusters.get(cluster.name)
        # One that was stopped and started again goes on counting; another was lost.
        if former and former.id != cluster.id:
            self._count(former)
        self._clusters[cluster.name] = cluster

    def ending(self, cluster: Cluster) -> None:
        """Add up its cost."""
        if self._clusters.pop(cluster.name, None):
            self._count(cluster)

    def disconnected(self, cluster: Cluster) -> None:
        """Do nothing: a lost cluster is started again by the cell that needs it."""

    # Its life

    def run(self) -> None:
        """Run the cells, wait for their runs in the background, and end the clusters."""
        try:
            try:
                self._run()
            finally:  # inside: its clusters are ended also if a signal comes at this moment
                self._is_closing = True
        except KeyboardInterrupt:  # between cells
            self.status = 128 + (self.signal or signal.SIGINT)
        except OSError as error:
            # As of `jupyter sky run train.ipynb | head`, or where the terminal was closed.
            if not isinstance(error, BrokenPipeError) and not (self.signal and is_unread()):
                raise
            self.status = 128 + self.signal if self.signal else _FAILED
        finally:
            self._is_closing = True
            discard_unread()
            self._close()

    def _run(self) -> None:
        try:
            self._run_cells()
        finally:
            if self.signal is not None:
                self._stop_background()
            for run in background_run.begun():
                self._show_output(run)  # the status so far

    def _run_cells(self) -> None:
        for cell in self._cells:
            self._ran = cell.number
            result = self._shell.run(cell)
            for run in background_run.begun():
                if run.is_answered:
                    self._show_output(run)
            sys.stdout.flush()
            if self._ends_with(result, cell):
                return
        self._wait_for_background()

    def _ends_with(self, result: ExecutionResult, cell: SourceCell) -> bool:
        """Return whether the program ends with this cell, and set its exit status."""
        error = result.error_before_exec or result.error_in_exec
        word = "was stopped"
        if self.signal is not None:
            self.status = 128 + self.signal
        elif error is None:
            return False
        elif is_of_pipe(error):
            raise error
        elif (end := exit_of(error)) is not None:
            self.status = exit_status(end)
            return True
        elif isinstance(error, KeyboardInterrupt):
            self.status = 128 + signal.SIGINT
        elif cell.may_fail:
            return False
        else:
            self.status, word = _status_of(error), "failed"
        total = len(self._cells)
        self._say(f"cell {cell.number} of {total} {word}" if total > 1 else word)
        return True

    def _wait_for_background(self) -> None:
        """Wait for runs in the background; if one fails unnoticed, the program fails."""
        for run in background_run.begun():
            if run.is_answered:
                continue
            if not run.done:
                self._say(f"waiting for {run.title}")
            try:
                try:
                    run.result()
                finally:
                    self._show_output(run)
            except KeyboardInterrupt:
                self.status = 128 + (self.signal or signal.SIGINT)
                return
            except Exception as error:
                self._shell.showtraceback()
                self.status = self.status or _status_of(error)

    def _stop_background(self) -> None:
        """Stop runs in the background on clusters that stay up, where they would go on.

        The end of a cluster stops its runs itself: ranks that save something are told once.
        """
        left = [
            run
            for run in background_run.begun()
            if not run.done and (run.cluster not in self._clusters or self._stays(run.cluster))
        ]
        for run in left:
            run.cancel()
        until = time.monotonic() + STOPPED_WITHIN + self._session.settings.timeouts().stop
        with suppress(KeyboardInterrupt):  # a further signal ends the wait
            for run in left:
                with suppress(Exception, Interrupted):  # it was stopped
                    run.result(max(0.0, until - time.monotonic()))

    def _show_output(self, run: BackgroundRun) -> None:
        """Print the output of a run in the background, once, since no display shows it here."""
        if run not in self._shown:
            self._shown.add(run)
            text = run.output
            print(text, end="" if text.endswith("\n") or not text else "\n", flush=True)

    def _close(self) -> None:
        """End the clusters that it started, unless they should stay up, and report their cost."""
        stay = {name: each for name, each in self._clusters.items() if self._stays(name)}
        for cluster in stay.values():
            if not _is_stopped(cluster.name):
                why = "" if self._keep else ", as another notebook or program has a run there"
                self._say(stays_up(cluster, why))
        for name in self._names():
            if _is_stopped(name):  # with `%sky stop`, which keeps its disks
                self._say(f"{name} stays stopped: `jupyter sky start {name}` starts it again")
                continue
            if name in stay:
                continue
            try:
                # Nobody may be there to decide, and machines that stay cost money.
                self._say(self._session.down(name, unwritten="tell"))
            except Exception as error:  # of any kind: the others cost money, too
                self._say(f"{name}: {error}" if not isinstance(error, SkyError) else str(error))
                self.status = self.status or _FAILED
        for cluster in self._clusters.values():  # those that have not ended here, as stopped ones
            self._count(cluster)
        took = format_elapsed(time.monotonic() - self._began)
        cost = "".join(f", {format_cost(each, unit)}" for unit, each in self._spent.items() if each)
        how = "finished" if not self.status else f"ended with status {self.status}"
        self._say(f"{how} after {format_count(self._ran, 'cell')} and {took}{cost}")
        self._session.close()

    def _stays(self, name: str) -> bool:
        """Return whether a cluster that it started stays up: for the user, or for others' runs."""
        cluster = self._clusters[name]
        return self._keep or (cluster.alive and cluster.others.have_run)

    def _names(self) -> list[str]:
        """Return the clusters to end: also one that an error or signal kept from being noted."""
        names = list(self._clusters)
        if self.signal is not None or self.status:
            with suppress(registry.RegistryError):
                mine = (row for row in registry.rows() if row.was_started_here)
                names += [row.name for row in mine if not row.is_stopped]
        return list(dict.fromkeys(names))

    def _count(self, cluster: Cluster) -> None:
        view = cluster.snapshot()["cluster"]
        self._spent[view["unit"]] += view["cost"] or 0.0

    def _say(self, text: str) -> None:
        try:
            sys.stdout.flush()
            print(f"{self._path.name}: {as_in_command(text)}", file=sys.stderr, flush=True)
        except OSError:
            if not self._is_closing:  # what nobody can read must keep no cluster up
                raise

    def on_signal(self, number: int) -> None:
        """Stop the program; ending the clusters afterwards cannot be interrupted."""
        if self._is_closing:
            self._say("it is ending its clusters: wait for that, else they go on for a while")
            return
        # Again, too: its code may have caught the first one, and go on.
        self.signal = self.signal or number
        raise KeyboardInterrupt


def _is_stopped(name: str) -> bool:
    """Return whether the machines of a cluster are stopped, as far as the registry can be read."""
    row = None
    with suppress(registry.RegistryError):
        row = registry.find(name)
    return row is not None and row.is_stopped


def _status_of(error: BaseException) -> int:
    if isinstance(error, ScriptFailed):
        return error.status
    return _MISUSED if isinstance(error, UsageError) else _FAILED
