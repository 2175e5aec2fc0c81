"""The shell in which ``jupyter sky run`` runs the cells of a notebook or script."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

from IPython.core.autocall import ExitAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets import Type, default

from jupyter_sky.cluster.errors import Interrupted, RemoteError
from jupyter_sky.errors import SkyError, as_in_command
from jupyter_sky.notebook.output.unread import is_unread
from jupyter_sky.notebook.programs.cells import SourceCell
from jupyter_sky.serialization import cell_sources


class _Compiler(CachingCompiler):  # type: ignore[misc, unused-ignore]
    """Names the cells of a script after its file, as Python does."""

    script = ""

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        if self.script:
            return cell_sources.label(name) if name == self.script else None
        return cast("tuple[str, str] | None", super().format_code_name(name))

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        return self.script or str(super().get_code_name(raw_code, transformed_code, number))

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        former = linecache.cache.get(self.script)
        name: str = super().cache(transformed_code, number, raw_code)
        if self.script:
            cell_sources.join(name, former)
        return name


class ProgramShell(InteractiveShell):  # type: ignore[misc, unused-ignore]
    """A shell that keeps tracebacks apart from the output of its cells.

    Attributes
    ----------
    program
        The name after which its clusters are named.
    words
        The program's name and arguments.
    script
        The program's file, unless it is a notebook.
    above
        The number of lines of the script above the running cell.
    is_stopped
        Returns whether a signal has stopped the program.
    """

    compiler_class = Type(_Compiler)

    program = ""
    words: tuple[str, ...] = ()
    script: Path | None = None
    above = 0
    is_stopped: Callable[[], bool] = staticmethod(lambda: False)
    _next: SourceCell | None = None
    _is_beginning = False

    def run(self, cell: SourceCell) -> ExecutionResult:
        """Run a cell of the program."""
        self.above, self._next, self._is_beginning = cell.above, cell, True
        self.compile.script = str(self.script or "")
        return self.run_cell(cell.typed, store_history=True)

    def transform_cell(self, raw_cell: str) -> str:
        """Return a cell as Python, whose lines have the numbers that they have in a script."""
        cell, self._next = self._next, None
        if cell is None:  # a magic of the program's cell runs what is below it
            return str(super().transform_cell(raw_cell))
        # IPython drops empty lines at the top.
        above = cell.above + cell.text.removesuffix(cell.text.lstrip()).count("\n")
        return "\n" * above + str(super().transform_cell(cell.text))

    async def run_ast_nodes(self, *args: Any, result: ExecutionResult, **kwargs: Any) -> bool:
        """Run the code of a cell, unless a signal came in a hook before it.

        IPython goes on with the cell whatever a hook raises.
        """
        is_beginning, self._is_beginning = self._is_beginning, False
        if is_beginning and self.is_stopped():
            result.error_in_exec = KeyboardInterrupt()
            return True
        return bool(await super().run_ast_nodes(*args, result=result, **kwargs))

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing: ``%matplotlib inline`` calls this, and there are no windows here."""

    @default("exiter")
    def _make_exiter(self) -> ExitAutocall:
        return _Exit(self)

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Show an error, unless code ends the program or nobody reads the output."""
        error = sys.exception()
        if isinstance(error, KeyboardInterrupt):
            self._cut_traceback(error)
        if exit_of(error) is None and not is_of_pipe(error):
            super().showtraceback(*args, **kwargs)

    def _cut_traceback(self, stop: KeyboardInterrupt) -> None:
        """Leave of where the program was stopped what is its own: modules have many frames."""
        at, own = stop.__traceback__, None
        while at:
            own = at if at.tb_frame.f_globals is self.user_ns else own
            at = at.tb_next
        if own:
            own.tb_next = None

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        sys.stdout.flush()
        text = self.InteractiveTB.stb2text(stb)
        # It is read in a terminal; what the program's own code raises stays as it is.
        is_ours = isinstance(evalue, SkyError | Interrupted)
        print(as_in_command(text) if is_ours else text, file=sys.stderr, flush=True)


class _Exit(ExitAutocall):  # type: ignore[misc]
    """``exit`` and ``quit`` in a program: they do what `sys.exit` does."""

    def __call__(self, status: Any = None) -> NoReturn:
        raise SystemExit(status)


def exit_of(error: BaseException | None) -> SystemExit | None:
    """Return the `SystemExit` with which the program's code ended it, here or on a rank."""
    if isinstance(error, RemoteError) and error.failures[0].error["type"] == SystemExit.__name__:
        return SystemExit(*error.args)
    return error if isinstance(error, SystemExit) else None


def is_of_pipe(error: BaseException | None) -> bool:
    """Return whether an error means that nobody reads the program's output."""
    return isinstance(error, BrokenPipeError) and is_unread()
