"""The IPython shell of a rank: it runs cells as a notebook would, and sends what they display."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from IPython.core.compilerop import CachingCompiler
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.text import LSString, SList
from traitlets import Type, default
from traitlets.config import Config

from jupyter_sky.node.rank.ipython import (
    error_text,
    event_loop,
    no_keyboard,
    plain_python,
    program,
    shell_lines,
    spawned,
    widgets,
)
from jupyter_sky.node.rank.ipython.displays import RankDisplayHook, RankDisplayPublisher
from jupyter_sky.node.rank.ipython.sentences import sentence_of
from jupyter_sky.serialization import cell_sources
from jupyter_sky.serialization.user_modules import OF_MAIN
from jupyter_sky.transport.protocol.error_report import ErrorReport, is_consequence


class ShellOwner(Protocol):
    """What the shell needs from its rank."""

    def display(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Send something to display: its kind, and the fields of the event `Display`."""

    def run_ignoring_interrupts(
        self, function: Callable[..., None], *args: Any, **kwargs: Any
    ) -> None:
        """Call a function during which no interrupt is raised."""


# To mypy, the classes of IPython are `Any`: it is told to skip them.


class _Compiler(CachingCompiler):  # type: ignore[misc, unused-ignore]
    """Names cells in tracebacks as the notebook does; ``title`` is that of the next cell.

    ``on_named`` is called once a cell has its name, before it runs.
    """

    title = ""
    on_named: Callable[[], None] | None = None
    _filename_map: dict[str, int]

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        title = cell_sources.titles.get(name)
        if title:
            return cell_sources.label(title)
        return cast("tuple[str, str] | None", super().format_code_name(name))

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        former = linecache.cache.get(self.title)
        name: str = super().cache(transformed_code, number, raw_code)
        if name == self.title:
            cell_sources.join(name, former)
        return name

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        # Python's own tracebacks and log records, as of `logging.exception`, show this name.
        if cell_sources.is_path(self.title):
            name = self.title
        else:
            in_notebook = cell_sources.number(self.title)
            number = number if in_notebook is None else in_notebook
            name = super().get_code_name(raw_code, transformed_code, number)
        cell_sources.remember(name, self.title)
        if len(self._filename_map) > len(cell_sources.titles):
            kept = self._filename_map.keys() & cell_sources.titles.keys()
            self._filename_map = {each: self._filename_map[each] for each in kept}
        if self.on_named:
            self.on_named()
        return name


class RankShell(InteractiveShell):  # type: ignore[misc, unused-ignore]
    """An IPython shell without terminal, history or prompt."""

    compiler_class = Type(_Compiler)
    displayhook_class = Type(RankDisplayHook)
    display_pub_class = Type(RankDisplayPublisher)

    # Traits that IPython sets in each cell, and that nobody observes. Plain attributes are faster.
    last_execution_result: Any = None
    last_execution_succeeded = True

    is_rank = True
    """Whether `jupyter_sky.load_ipython_extension` leaves it as it is."""

    cell = ""
    _owner: ShellOwner | None = None
    _above = 0
    _lines: Sequence[str] = ()
    _pending: tuple[BaseException, list[str]] | None = None
    is_failing = False
    """Whether an error has ended what was asked for, and is being made ready to be sent."""

    def init_magics(self) -> None:
        super().init_magics()
        self.register_magics(shell_lines.RankScriptMagics)
        no_keyboard.refuse_magics(self)

    def attach(self, owner: ShellOwner) -> None:
        """Become the shell of a rank: it was made in the fork server, which has no rank."""
        self._owner = owner
        # That may have begun in the folder of another notebook, to which `%cd -` would go.
        with contextlib.suppress(OSError):
            self.user_ns["_dh"][:] = [Path.cwd()]

    def find_profile(self) -> None:
        """Use the IPython folder that the environment names now."""
        self.init_ipython_dir(None)
        self.init_profile_dir(None)

    def show(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Send something to display, after everything that was printed before it."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._owner:
            self._owner.display(kind, {**fields, "data": widgets.as_text(fields["data"])})

    def run(
        self, code: str, title: str, above: int, words: Sequence[str] | None = None
    ) -> BaseException | None:
        """Run a cell and return the exception that ended it, if one did.

        Parameters
        ----------
        code
            The cell.
        title
            The name of the notebook's cell, or of the script's file, for tracebacks.
        above
            The number of lines above the code in that cell or file.
        words
            The name and arguments of the program that it is part of; see `program`.
        """
        self.cell = code
        self.compile.title = title
        self._above = above
        result = self.run_cell(code, store_history=False)
        error: BaseException | None = result.error_before_exec or result.error_in_exec
        if error is not None and self._pending and self._pending[0] is error:
            self._lines, self._pending = self._pending[1], None
        if error is not None and not self._lines:
            # The user's code shows errors itself, as `rich.traceback.install()` has it do. Of a
            # rank whose output is not shown, nobody would see it.
            self._lines = self._short_lines(error)
            if not self._lines:
                self.record_traceback(error, skip=1)  # IPython's frame, which runs the code
        if program.has_ended_well(error, words):
            error, self._lines, self._pending = None, [], None
        self._print_pending()
        return error

    def transform_cell(self, raw_cell: str) -> str:
        above, self._above = self._above, 0
        # IPython drops empty lines at the top.
        above += raw_cell.removesuffix(raw_cell.lstrip()).count("\n")
        plain = plain_python.as_it_is(self, raw_cell)
        return "\n" * above + (plain or super().transform_cell(raw_cell))

    def should_run_async(self, raw_cell: str, **prepared: Any) -> bool:
        """Return whether a cell needs an event loop; IPython would compile it to find out."""
        text = prepared.get("transformed_cell") or raw_cell
        # Without these keywords nothing is awaited.
        awaits = "await" in text or "async" in text
        awaits = awaits and bool(super().should_run_async(raw_cell, **prepared))
        if not awaits and not event_loop.is_needed(text, self.user_ns):
            return False
        event_loop.note_use()
        return True

    def reset(self, new_session: bool = True, aggressive: bool = False) -> None:
        """Clear the user's names; IPython clears also what Python needs in ``__main__``."""
        own = {name: self.user_ns[name] for name in OF_MAIN & self.user_ns.keys()}
        super().reset(new_session, aggressive)
        self.user_ns.update(own)

    def reset_traceback(self) -> None:
        """Forget the traceback of the previous run."""
        self._lines, self._pending, self.is_failing = [], None, False

    @property
    def last_traceback(self) -> Sequence[str]:
        """The lines of the traceback of the error that ended the run."""
        return self._lines

    def forget_error(self) -> None:
        """Release the last error, whose frames keep all their variables alive."""
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        self.last_execution_result = None
        self.InteractiveTB.tb = None

    def system(self, cmd: str) -> None:
        """Run ``!cmd``; it writes to the rank's own streams, and Stop ends it with the cell."""
        self.user_ns["_exit_code"] = shell_lines.run(self.var_expand(cmd, depth=1))

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """Return what ``!!cmd`` prints; Stop ends it with the cell."""
        if cmd.rstrip().endswith("&"):  # which IPython refuses
            return super().getoutput(cmd)
        text = shell_lines.output(self.var_expand(cmd, depth=depth + 1))
        return SList(text.splitlines()) if split else LSString(text)

    @default("exiter")
    def _make_exiter(self) -> program.Exit:
        return program.Exit(self)

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        is_stop = isinstance(sys.exc_info()[1], KeyboardInterrupt)
        if kwargs.get("running_compiled_code") and not is_stop and not _is_in_cell():
            self.is_failing = True
        # An interrupt at this point would only garble the traceback; it will be repeated.
        if self._owner:
            self._owner.run_ignoring_interrupts(self._show_error, *args, **kwargs)
        else:
            self._show_error(*args, **kwargs)

    def _show_error(self, *args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            error_text.leave_out_hidden(error)
        if error is not None and (lines := self._short_lines(error)):
            self._showtraceback(type(error), error, lines)
        else:
            super().showtraceback(*args, **kwargs)
            cell_sources.drop_traceback_caches()

    def _short_lines(self, error: BaseException) -> list[str]:
        """Return what is shown of an error that needs no lines of source; empty for others."""
        if line := sentence_of(error):
            return [line]
        # The error of a collective that a peer has left takes long, and is not the cause.
        is_secondary = is_consequence(error_text.text(error))
        if is_secondary or error_text.has_group(error) or error_text.is_deep(error):
            return list(error_text.bare_lines(error))
        return []

    def _tee(self, channel: str) -> contextlib.AbstractContextManager[None]:
        # IPython would keep everything that is ever printed, for its history of outputs.
        return contextlib.nullcontext()

    def init_prompts(self) -> None:
        # There are no prompts: libraries take `sys.ps1` as a sign of an interactive session, in
        # which Lightning refuses to train on several ranks.
        pass

    def enable_gui(self, gui: object = None) -> None:
        """Do nothing, as `%matplotlib inline` needs: figures are displayed anyway."""

    def _showtraceback(
        self, etype: type[BaseException], evalue: BaseException, stb: Sequence[str]
    ) -> None:
        # IPython also shows errors in the middle of a cell, as of a failing `_repr_html_`. `run`
        # will know which one ended the cell. If this rank was stopped because a peer failed, the
        # error of its own collective is only a consequence, and is not shown.
        stopped = isinstance(evalue, KeyboardInterrupt)
        if stopped and self._pending and is_consequence(error_text.text(self._pending[0])):
            self._pending = None
        self._print_pending()
        self._pending = (evalue, error_text.with_known_source(stb))

    def _print_pending(self) -> None:
        if self._pending:
            print("\n".join(self._pending[1]), file=sys.stderr)
        self._pending = None

    def report(self, error: BaseException) -> ErrorReport:
        """Return an error as plain data, with the traceback that was recorded last."""
        if not self._lines:
            self._lines = traceback.format_exception(error)
        return error_text.report(error, self._lines)

    def record_sentence(self, error: BaseException) -> None:
        """Record a sentence in place of the traceback of an error, for `report`."""
        self.is_failing = True
        self._lines = [f"{type(error).__name__}: {error}".removesuffix(": ")]

    def record_traceback(self, error: BaseException, skip: int) -> None:
        """Record the traceback of an error that was raised outside a cell, for `report`.

        Parameters
        ----------
        error
            The error.
        skip
            The number of outermost frames that are ours, not the user's.
        """
        if isinstance(error, KeyboardInterrupt):  # see `_show_error`
            self._lines = ["KeyboardInterrupt"]
            return
        self.is_failing = True
        error_text.leave_out_hidden(error)
        if isinstance(error, SyntaxError):  # the error is in the file itself, not in its import
            self._lines = "".join(traceback.format_exception_only(error)).splitlines()
            return
        frames = error.__traceback__
        for _ in range(skip):
            if frames is not None and frames.tb_next is not None:
                frames = frames.tb_next
        if error_text.is_deep(error):
            self._lines = error_text.python_lines(error, frames)
            return
        shown = self.InteractiveTB.structured_traceback(type(error), error, frames, tb_offset=0)
        self._lines = error_text.with_known_source(shown)
        cell_sources.drop_traceback_caches()


def make_shell() -> RankShell:
    """Return the shell of this process, made in the fork server and inherited by each rank."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.cache_size = 0
    config.Completer.use_jedi = False
    shell: RankShell = RankShell.instance(config=config)
    # No outputs are kept here, and `_` should not look like an output that is an empty string.
    for name in ("_", "__", "___"):
        shell.user_ns.pop(name, None)
    plain_python.remember_checkers(shell)
    no_keyboard.refuse()
    widgets.install()
    spawned.install()
    threading.excepthook = error_text.print_of_thread
    warnings.formatwarning = error_text.warning_lines
    # Figures are displayed, as in a notebook's kernel.
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    # IPython's advice about `sys.exit()` is meant for a terminal.
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)
    return shell


def _is_in_cell() -> bool:
    """Return whether another cell, which ran this one, is still running."""
    return cell_sources.running_frame() is not None
