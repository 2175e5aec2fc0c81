"""The IPython shell of a rank: it runs cells as a notebook would, and sends what they display."""

from __future__ import annotations

import builtins
import getpass
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from jupyter_sky.serialization import cell_sources
from jupyter_sky.transport.error_report import is_consequence

_LONGEST = 20_000  # characters of an error's text

Send = Callable[[str, dict[str, Any]], None]
"""Sends something to display: its kind, and the fields of the event."""


class _Hook(DisplayHook):
    """Sends the value of a cell's last expression instead of printing it."""

    def quiet(self) -> bool:
        return self.semicolon_at_end_of_expression(self.shell.cell)

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict, md_dict: dict | None = None) -> None:
        self.shell.show("result", {"data": format_dict, "metadata": md_dict or {}})

    def log_output(self, format_dict: dict) -> None:
        pass


class _Publisher(DisplayPublisher):
    """Sends what ``display`` shows."""

    def publish(
        self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs
    ) -> None:
        kind = "update" if update else "display"
        fields = {"data": data, "metadata": metadata or {}, "transient": transient or {}}
        self.shell.show(kind, fields)

    def clear_output(self, wait: bool = False) -> None:
        self.shell.show("clear", {"data": {"wait": wait}})


class _Compiler(CachingCompiler):
    """Knows what cells are called in the notebook; ``title`` is that of the next."""

    title = ""

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        title = cell_sources.titles.get(name)
        return ("Cell", title) if title else super().format_code_name(name)

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        name = super().get_code_name(raw_code, transformed_code, number)
        cell_sources.titles[name] = self.title
        return name


class RankShell(InteractiveShell):
    """An IPython shell without terminal, history or prompt."""

    compiler_class = Type(_Compiler)
    displayhook_class = Type(_Hook)
    display_pub_class = Type(_Publisher)

    cell = ""
    send: Send | None = None
    put_off_interrupts: Callable[..., Any] | None = None
    _above = 0
    _lines: Sequence[str] = ()
    _pending: tuple[BaseException, list[str]] | None = None

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        """Send something to display, behind what was printed before it."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self.send:
            self.send(kind, fields)

    def run(self, code: str, title: str, above: int) -> BaseException | None:
        """Run a cell and return the exception that ended it, if one did.

        Parameters
        ----------
        code
            The cell.
        title
            What the notebook's cell is called, for tracebacks.
        above
            Lines that the notebook's cell has above the code.
        """
        self.cell = code
        self.compile.title = title
        self._above = above
        result = self.run_cell(code, store_history=False)
        error = result.error_before_exec or result.error_in_exec
        if error is not None and self._pending and self._pending[0] is error:
            self._lines, self._pending = self._pending[1], None
        self._print_pending()
        return error

    def transform_cell(self, raw_cell: str) -> str:
        above, self._above = self._above, 0
        # IPython drops empty lines at the top.
        above += raw_cell.removesuffix(raw_cell.lstrip()).count("\n")
        return "\n" * above + super().transform_cell(raw_cell)

    def begin(self) -> None:
        """Forget the traceback of the run before."""
        self._lines, self._pending = [], None

    def system(self, cmd: str) -> None:
        """Run ``!cmd``; it writes to the rank's own streams, and Stop ends the cell with it."""
        command = self.var_expand(cmd, depth=1)
        self.user_ns["_exit_code"] = subprocess.call(
            command, shell=True, executable=os.environ.get("SHELL")
        )

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        # A Stop that comes now would only garble the traceback; it is repeated a moment later.
        show = self._show_error
        if self.put_off_interrupts:
            self.put_off_interrupts(show, *args, **kwargs)
        else:
            show(*args, **kwargs)

    def _show_error(self, *args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            code = "" if error.code is None else repr(error.code)
            line = f"SystemExit: the cell called sys.exit({code}); the rank and its variables stay."
            self._showtraceback(type(error), error, [line])
        elif error is not None and _has_group(error):
            self._showtraceback(type(error), error, _group_lines(error))
        else:
            super().showtraceback(*args, **kwargs)

    def enable_gui(self, gui: object = None) -> None:
        """Do nothing for `%matplotlib inline`, which asks for it: figures are displayed anyway."""

    def _showtraceback(self, etype, evalue, stb: list[str]) -> None:
        # IPython shows errors in the middle of a cell too, of a failing `_repr_html_` for instance.
        # Which one has ended the cell is known when it is over: `run` tells.
        # A rank that is stopped because a peer has failed: what that did to it says nothing.
        stopped = isinstance(evalue, KeyboardInterrupt)
        if stopped and self._pending and is_consequence(_text(self._pending[0])):
            self._pending = None
        self._print_pending()
        self._pending = (evalue, list(stb))

    def _print_pending(self) -> None:
        if self._pending:
            print("\n".join(self._pending[1]), file=sys.stderr)
        self._pending = None

    def describe(self, error: BaseException) -> dict[str, Any]:
        """Return an error as plain data, with the traceback that the shell made of it last."""
        kind = type(error)
        if not self._lines:
            self._lines = traceback.format_exception(error)
        return {
            "type": kind.__qualname__,
            "module": kind.__module__,
            "bases": [(base.__module__, base.__qualname__) for base in kind.__mro__],
            "text": _shortened(_text(error)),
            "args": _plain(list(error.args)) if isinstance(error.args, tuple) else [],
            "attributes": _plain(dict(vars(error))) if hasattr(error, "__dict__") else {},
            "traceback": [_shortened(line) for line in self._lines[-500:]],
        }

    def say(self, error: BaseException) -> None:
        """Have an error shown as one sentence."""
        self._lines = [f"{type(error).__name__}: {error}"]

    def format(self, error: BaseException, skip: int) -> None:
        """Make the traceback of an error that was raised outside of a cell.

        Parameters
        ----------
        error
            The error.
        skip
            How many of the outermost frames are ours, not the person's.
        """
        if isinstance(error, SyntaxError):  # it is about a file, not about who imports that
            self._lines = "".join(traceback.format_exception_only(error)).splitlines()
            return
        frames = error.__traceback__
        for _ in range(skip):
            if frames is not None and frames.tb_next is not None:
                frames = frames.tb_next
        self._lines = self.InteractiveTB.structured_traceback(
            type(error), error, frames, tb_offset=0
        )


def make_shell() -> RankShell:
    """Return the shell of this process; made in the fork server, inherited by each rank."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.cache_size = 0
    config.Completer.use_jedi = False
    shell = RankShell.instance(config=config)
    # No outputs are kept here; that the last one seems to be an empty text would only mislead.
    for name in ("_", "__", "___"):
        shell.user_ns.pop(name, None)
    refuse_keyboard()
    # Figures are displayed, as in a notebook's kernel.
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    # What IPython says of `sys.exit()` holds for a terminal.
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)
    return shell


def _has_group(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, BaseExceptionGroup):
        error = error.__context__
    return error is not None


def _group_lines(error: BaseException) -> list[str]:
    """Return the traceback of an error that has an exception group, which IPython cannot make."""
    frames = error.__traceback__
    while (
        frames and frames.tb_next and frames.tb_frame.f_code.co_filename not in cell_sources.titles
    ):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    for name, title in cell_sources.titles.items():
        text = text.replace(f'File "{name}"', f"Cell {title}")
    return text.splitlines()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__qualname__} that cannot be shown>"


def _shortened(text: str) -> str:
    """Return a text that a message can carry and a person may want to read."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _plain(value: Any, depth: int = 4) -> Any:
    """Return ``value`` as data that a frame can carry; what is none becomes its text."""
    if isinstance(value, str):
        return _shortened(value)
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)
    if depth and isinstance(value, (list, tuple)):
        return [_plain(item, depth - 1) for item in value[:100]]
    if depth and isinstance(value, dict):
        items = [(key, item) for key, item in list(value.items())[:100] if isinstance(key, str)]
        return {key: _plain(item, depth - 1) for key, item in items}
    try:
        return repr(value)[:1000]
    except Exception:
        return f"<{type(value).__qualname__}>"


def refuse_keyboard() -> None:
    """Have `input`, `getpass` and `breakpoint` say in this process that nobody is there."""
    builtins.input = _no_input
    getpass.getpass = _no_password
    sys.breakpointhook = _no_debugger


def _no_input(prompt: object = "") -> NoReturn:
    raise RuntimeError(
        "input() has no keyboard on a node. Ask in a cell of the notebook, and use the answer here."
    )


def _no_password(prompt: str = "", stream: object = None, **options: object) -> NoReturn:
    raise RuntimeError(
        "getpass() has no keyboard on a node. Ask in a cell of the notebook, and use the answer "
        "here."
    )


def _no_debugger(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError(
        "breakpoint() has no keyboard on a node. Print what you want to see, or bring it to the "
        "notebook with --out and look at it there."
    )
