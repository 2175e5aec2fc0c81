"""Python's own debugger, with the notebook as its terminal.

It differs from pdb at a terminal as follows: it only shows the user's frames, and not those that
run the cell; it uses the notebook's names for cells; and an interrupt ends the cell.
"""

from __future__ import annotations

import ast
import functools
import linecache
import pdb
import re
import sys
from types import CodeType, FrameType, TracebackType
from typing import Any

from jupyter_sky.errors import DebuggerQuit
from jupyter_sky.node.rank.debugger.keyboard import LONGEST_TEXT, Keyboard
from jupyter_sky.node.rank.inspection import stacks
from jupyter_sky.serialization import cell_sources

_BREAKPOINT = re.compile(r"(?:Breakpoint|Deleted breakpoint|\d+ +breakpoint ).* at (.+):\d+")
_OURS = ("jupyter_sky", "IPython", "traitlets", "ipykernel", "pdb", "bdb")


class _Terminal:
    """Input and output of the debugger: its output is sent when it reads the next line."""

    def __init__(self, keyboard: Keyboard) -> None:
        self.frame: FrameType | None = None
        self.encoding = "utf-8"
        self._keyboard = keyboard
        self._written: list[str] = []
        self._size = 0

    def write(self, text: str) -> int:
        """Keep what is written, up to a limit."""
        self._written.append(text)
        self._size += len(text)
        if self._size > 4 * LONGEST_TEXT:
            kept = "".join(self._written)
            self._written = [kept[:LONGEST_TEXT], kept[-LONGEST_TEXT:]]
            self._size = sum(map(len, self._written))
        return len(text)

    def flush(self) -> None:
        """Do nothing: output is sent with the next prompt."""

    def isatty(self) -> bool:
        """Return ``False``, so that no colours or pagers are used."""
        return False

    def readline(self) -> str:
        """Return the next line that the user types; empty at the end of the input."""
        text = "".join(self._written)
        self._written, self._size = [], 0
        try:
            line = self._keyboard.ask("debugger", self.frame, text)
        except EOFError:
            return ""
        return f"{line}\n"


class RankPdb(pdb.Pdb):
    """The debugger of a rank in one run.

    Parameters
    ----------
    keyboard
        Asks the user.
    """

    def __init__(self, keyboard: Keyboard) -> None:
        self._terminal = _Terminal(keyboard)
        self._keyboard = keyboard
        self._origins: set[CodeType] = set()
        self._was_left = False
        streams: Any = self._terminal
        super().__init__(stdin=streams, stdout=streams, nosigint=True, readrc=False)
        self.prompt = ""  # the notebook has its own input line
        self.use_rawinput = False

    # Where it stops

    def stop_at(self, frame: FrameType) -> None:
        """Stop at the next line in a frame."""
        self._origins.add(frame.f_code)
        self.set_trace(frame)
        if sys.version_info >= (3, 13):
            # It does so itself, but where a breakpoint lets it trace already, this was found unset:
            # it stopped at the line below.
            frame.f_trace_opcodes = True

    def look_at(self, error: BaseException | TracebackType, header: str = "") -> bool:
        """Let the user debug the frames of an error; return whether the user left with ``q``."""
        self.reset()
        if header:
            self.message(header)
        frames: Any = error
        if sys.version_info < (3, 13) and isinstance(error, BaseException):
            frames = error.__traceback__
        self.interaction(None, frames)
        return self._was_left

    def finish(self) -> None:
        """Stop tracing: the cell has ended."""
        sys.settrace(None)
        self.clear_all_breaks()
        self.forget()

    def stop_here(self, frame: FrameType) -> bool:
        """Return whether to stop in a frame: not in those that run the cell."""
        return bool(super().stop_here(frame)) and self._is_below(frame)

    def break_here(self, frame: FrameType) -> bool:
        """Return whether there is a breakpoint to stop at; if nobody can answer, there is none."""
        return self._keyboard.is_there and bool(super().break_here(frame))

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the frames to show: the user's, and those that they have called."""
        stack, index = super().get_stack(f, t)
        first = next((at for at, (frame, _) in enumerate(stack) if self._is_users(frame)), 0)
        return stack[first:], max(0, index - first)

    def _is_below(self, frame: FrameType | None) -> bool:
        """Return whether a frame is the user's, or was called from the user's, but not by ours."""
        while frame is not None:
            if self._is_users(frame):
                return True
            if _is_ours(frame):
                return False
            frame = frame.f_back
        return False

    def _is_users(self, frame: FrameType) -> bool:
        return frame.f_code in self._origins or is_users(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Stop at the beginning of a function; the statements of a cell do not count as one."""
        if not _is_statement(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Stop at the end of a function, but not of a statement, which IPython runs like one."""
        if not _is_statement(frame) or _is_last(frame):
            super().user_return(frame, return_value)
        else:
            self.set_step()

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Stop where an exception is raised; the end of an `await` in a cell does not count."""
        if not self._is_below(frame):
            self.set_step()
        else:
            super().user_exception(frame, exc_info)

    # Prompts and output

    def interaction(self, frame: FrameType | None, *rest: Any, **options: Any) -> None:
        """Prompt until the user lets the cell continue or ends it."""
        self._was_left = False
        if self._keyboard.is_there:
            super().interaction(frame, *rest, **options)
        elif frame is not None:
            self.set_continue()
        if self._was_left and frame is not None:
            # Not `BdbQuit`, about which IPython is silent: the next cell would run as if nothing
            # had happened.
            raise DebuggerQuit("the cell ended here, as its debugger was left with `q`")

    def _cmdloop(self) -> None:
        # Not restarted after an interrupt, which ends the cell.
        self.cmdloop()

    def cmdloop(self, intro: Any = None) -> None:
        """Prompt until a command lets the cell continue."""
        super().cmdloop(intro)
        if not self._keyboard.is_there:
            # The notebook is gone, which ended the input: that is not `q`.
            self._was_left = False
            self.set_continue()

    def postcmd(self, stop: Any, line: str) -> Any:
        """Note the user's position after a command."""
        self._terminal.frame = getattr(self, "curframe", None)
        return super().postcmd(stop, line)

    def preloop(self) -> None:
        """Note the user's position at the first prompt."""
        self._terminal.frame = getattr(self, "curframe", None)
        super().preloop()

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """Return a line for a frame, with the notebook's names for cells."""
        text = super().format_stack_entry(frame_lineno, lprefix)
        file = frame_lineno[0].f_code.co_filename
        if file in cell_sources.titles:
            name, _ = stacks.place_of(file, cell_sources.titles)
            text = text.replace(f"{self.canonic(file)}(", f"{name}(", 1)
        return text

    def message(self, msg: str) -> None:
        """Show a line; use the notebook's name for the cell of a breakpoint."""
        if (found := _BREAKPOINT.match(str(msg))) and found[1] in cell_sources.titles:
            name, _ = stacks.place_of(found[1], cell_sources.titles)
            msg = msg.replace(found[1], name, 1)
        super().message(msg)

    def do_quit(self, arg: str) -> Any:
        """Leave the debugger and end the cell."""
        self._was_left = True
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> Any:
        """Leave the debugger at the end of the input."""
        return self.do_quit(arg)

    def do_run(self, arg: str) -> None:
        """Explain how to run a cell again."""
        self.error("run the cell again instead: `q` ends it")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """Explain that this prompt takes statements."""
        self.error("type the statements here: `!` before one that is a command too")


def is_users(frame: FrameType) -> bool:
    """Return whether a frame belongs to a cell or to a file of the user's."""
    file = frame.f_code.co_filename
    # The titles of cells come and go.
    return file in cell_sources.titles or _is_own(file)


@functools.lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    return stacks.place_of(file, {})[1]


def _is_statement(frame: FrameType) -> bool:
    """Return whether a frame is that of a cell's statements, outside functions."""
    code = frame.f_code
    return code.co_name == "<module>" and code.co_filename in cell_sources.titles


def _is_last(frame: FrameType) -> bool:
    """Return whether a frame is at the last statement of its cell."""
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return True
    return not statements or frame.f_lineno >= statements[-1].lineno


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS


def has_frames_of_user(error: BaseException) -> bool:
    """Return whether an error has frames to debug."""
    traceback = error.__traceback__
    while traceback is not None:
        if is_users(traceback.tb_frame):
            return True
        traceback = traceback.tb_next
    return False
