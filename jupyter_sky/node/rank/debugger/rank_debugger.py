"""The debugger of a rank: stops where the user wants, and keeps the frames of a failed cell."""

from __future__ import annotations

import functools
import gc
import os
import pdb
import sys
from collections.abc import Callable
from types import FrameType, ModuleType, TracebackType
from typing import Any

from IPython.core import debugger as ipython_debugger

from jupyter_sky.errors import DebuggerQuit, SkyError
from jupyter_sky.node.rank.debugger.frames import release_frames
from jupyter_sky.node.rank.debugger.holding import Holding
from jupyter_sky.node.rank.debugger.keyboard import Keyboard, place
from jupyter_sky.node.rank.debugger.rank_pdb import RankPdb, has_frames_of_user
from jupyter_sky.node.rank.inspection.stacks import with_callers
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.ipython.shell import RankShell
from jupyter_sky.transport.protocol.debugging import AnswerCommand, HoldCommand
from jupyter_sky.transport.protocol.error_report import is_consequence
from jupyter_sky.transport.protocol.events import Event
from jupyter_sky.transport.protocol.rank_messages import RunCommand

_STOPPING = ("breakpoint(", "set_trace(", "post_mortem(", "pdb.pm(")
"""What a cell that stops on all ranks has in its text."""


class RankDebugger:
    """The debugger of a rank; created in its main thread.

    The error of a cell is kept with everything that its frames refer to, even on GPUs, until the
    next run of the rank begins or the user leaves the debugger with ``q``.

    Parameters
    ----------
    rank
        The rank.
    shell
        Its shell.
    send
        Sends an event.
    interrupts
        Tells whether the run was stopped.
    """

    def __init__(
        self,
        rank: int,
        shell: RankShell,
        send: Callable[[Event], None],
        interrupts: Interrupts,
    ) -> None:
        self._rank = rank
        self._shell = shell
        self._keyboard = Keyboard(rank, send, interrupts)
        self._holding = Holding()
        self._run: str | None = None
        self._told: str | None = None  # the run in which a breakpoint was skipped
        self._pdb: RankPdb | None = None
        self._stops = self._keeps = self._releases = False
        self._kept: tuple[str, BaseException] | None = None
        sys.breakpointhook = self._on_breakpoint
        self._stand_in_for(pdb)
        self._stand_in_for(ipython_debugger)
        self._stand_in_for_post_mortem()
        os.register_at_fork(after_in_child=self._in_child)

    # The side thread

    def on_aside(self, command: AnswerCommand | HoldCommand) -> None:
        """Receive an answer of the user, or hold the rank; called by the side thread."""
        if command["op"] == "answer":
            self._keyboard.take(command)
        elif command["run"] == self._run:
            self._holding.hold()

    def at_prompt(self) -> tuple[str, FrameType | None]:
        """Return the kind of the present prompt, and the frame that it is about."""
        return self._keyboard.prompt, self._keyboard.frame

    # The main thread

    def begin(self, command: RunCommand) -> None:
        """Begin a run; release the frames of the previous one, unless they are to be debugged."""
        wishes = command["debugging"]
        # `%sky pull` and `%sky push` are not cells, and keep them.
        runs = command["code"] or command["call"] or command["script"] or command["serves"]
        self._keeps = bool(runs) and wishes["looks_at"] is None
        if self._keeps:
            self.forget()
        self._run, self._stops = command["run"], wishes["stops"]
        self._keyboard.begin(command["run"], wishes["keyboard"])
        code = command["code"] or ""
        if wishes["keyboard"] and (self._stops or any(each in code for each in _STOPPING)):
            # Before the other ranks begin to wait: collectives that have begun cannot be changed.
            self._holding.hold()

    def end(self, error: BaseException | None) -> None:
        """End the run, and keep its error."""
        run, self._run = self._run, None
        if self._pdb is not None:
            self._pdb.finish()
            self._pdb = None
        self._keyboard.end()
        self._holding.release()
        if self._releases:
            # Only now, since the debugger itself held it before.
            self._releases = False
            self.forget()
        if error is not None and run is not None and self._keeps:
            self._kept = (run, error)

    def on_error(self, error: BaseException) -> None:
        """Stop where the cell raised an exception, if the user wants that."""
        if not self._stops or not self._keyboard.is_there or not has_frames_of_user(error):
            return
        text = str(error) if isinstance(error, Exception) else ""
        if isinstance(error, KeyboardInterrupt | SystemExit | DebuggerQuit) or is_consequence(text):
            return
        self._debugger().look_at(error, "\n".join(self._shell.last_traceback))

    def look_at(self, run: str) -> None:
        """Let the user debug the error of a run, or of the last one that failed.

        Raises
        ------
        SkyError
            If it is not kept.
        """
        kept = self._kept
        if kept is None or (run and kept[0] != run):
            raise SkyError(
                f"rank {self._rank} has kept no error of that cell: the next cell releases it, and "
                "so does `q` in the debugger. Run the cell again, with `%%sky --pdb` to stop there."
            )
        if not has_frames_of_user(kept[1]):
            raise SkyError(
                f"the error of rank {self._rank} came from no line of the cell: there is nothing "
                "to look at."
            )
        text = f"{type(kept[1]).__name__}: {kept[1]}".rstrip(": ")
        self._releases = self._debugger().look_at(kept[1], text)

    def forget(self) -> None:
        """Release the frames of a failed cell, and everything that their variables refer to."""
        kept, self._kept = self._kept, None
        self._shell.forget_error()
        if kept is not None:
            _run, error = kept
            del kept
            had_variables = release_frames(error)
            del error
            if had_variables:
                # What else refers to itself: GPU memory must not wait for the collector.
                gc.collect()

    def _in_child(self) -> None:
        """Stop nowhere in a process that the cell has forked, like a worker of a DataLoader.

        Its prompts would be taken for its parent's, and their answers would not reach it.
        """
        self._stops = False
        if self._pdb is not None:
            sys.settrace(None)

    def _debugger(self) -> RankPdb:
        if self._pdb is None:
            self._pdb = RankPdb(self._keyboard)
        return self._pdb

    def _on_breakpoint(self, *args: Any, **options: Any) -> None:
        if os.environ.get("PYTHONBREAKPOINT") != "0":
            self._stop_at(sys._getframe(1), "breakpoint")

    def _stand_in_for(self, module: ModuleType) -> None:
        """Replace `set_trace` of a debugger that needs a terminal, which ranks lack, by ours."""

        # A function with the old one's name, since references to it are pickled by that name.
        @functools.wraps(module.set_trace)
        def set_trace(*args: Any, **options: Any) -> None:
            self._stop_at(sys._getframe(1), "set_trace")

        module.set_trace = set_trace  # type: ignore[attr-defined]

    def _stand_in_for_post_mortem(self) -> None:
        """Replace `post_mortem` and `pm` of pdb, too."""

        @functools.wraps(pdb.post_mortem)
        def post_mortem(t: BaseException | TracebackType | None = None) -> None:
            error = sys.exc_info()[1] if t is None else t
            if error is None or getattr(error, "__traceback__", error) is None:
                raise ValueError("post_mortem() needs an error: call it where one is handled")
            self._look_at(error, sys._getframe(1), "post_mortem")

        @functools.wraps(pdb.pm)
        def pm() -> None:
            error = getattr(sys, "last_value", None)
            if error is None:
                raise RuntimeError(
                    "pm() finds no error, since each cell releases that of the cell before: run "
                    "the one that failed again, and then %debug in a cell of its own, without "
                    "%%sky."
                )
            self._look_at(error, sys._getframe(1), "pm")

        pdb.post_mortem, pdb.pm = post_mortem, pm

    def _stop_at(self, frame: FrameType, name: str) -> None:
        if self._can_ask(frame, name):
            self._debugger().stop_at(frame)

    def _look_at(self, error: BaseException | TracebackType, frame: FrameType, name: str) -> None:
        if not self._can_ask(frame, name):
            return
        if self._pdb is None:
            self._debugger().look_at(error)
            return
        # A debugger of its own, as pdb's own functions have: the cell's may be tracing the cell.
        tracer, traces = sys.gettrace(), [(each, each.f_trace) for each in with_callers(frame)]
        sys.settrace(None)
        try:
            RankPdb(self._keyboard).look_at(error)
        finally:
            for each, trace in traces:
                each.f_trace = trace
            sys.settrace(tracer)

    def _can_ask(self, frame: FrameType, name: str) -> bool:
        """Return whether the user can be asked; report it if nobody is there."""
        if not self._keyboard.is_there:
            self._pass_over(frame, name)
            return False
        self._keyboard.check_thread(name)
        return True

    def _pass_over(self, frame: FrameType, name: str) -> None:
        """Report, once per run, a breakpoint at which nobody can be asked."""
        # If the user is gone, that was reported before.
        if self._run != self._told and not self._keyboard.is_gone:
            self._told = self._run
            print(
                f"rank {self._rank} goes on at {name}() ({place(frame)}): nobody can be asked "
                "in the background, in one of many calls, or where a program without a terminal "
                "runs this",
                file=sys.stderr,
            )
