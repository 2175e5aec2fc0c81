"""The way from a rank's main thread to the user's keyboard, and back.

The rank sends the event `Prompted`; the answer arrives in the side thread. The main thread waits
for it as part of the user's code, so that an interrupt is raised there as in any other line.
"""

from __future__ import annotations

import builtins
import getpass
import os
import queue
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from jupyter_sky.node.rank import streams
from jupyter_sky.node.rank.inspection import stacks
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.ipython import no_keyboard, program
from jupyter_sky.serialization import cell_sources
from jupyter_sky.transport.protocol.debugging import AnswerCommand
from jupyter_sky.transport.protocol.events import Event, Prompted

__tracebackhide__ = True

LONGEST_TEXT = 64 * 1024
"""Characters of what a prompt says; of more, beginning and end are sent."""

_LONGEST_PROMPT = 2000

_CONSOLES = ("cmd", "code", "pdb", "IPython.terminal.interactiveshell")
"""The modules whose calls of `input` the user has not written: debuggers, and `code.interact`."""


class Keyboard:
    """Asks the user from the main thread of a rank.

    Parameters
    ----------
    rank
        The rank.
    send
        Sends an event.
    interrupts
        Tells whether the run was stopped: then nobody is asked any more.

    Attributes
    ----------
    prompt
        The kind of the present prompt, as in `Prompted`; empty if there is none.
    frame
        The user's frame that asks, if any.
    is_there
        Whether somebody can answer.
    is_gone
        Whether somebody could answer earlier in this run, but no longer can.
    """

    def __init__(self, rank: int, send: Callable[[Event], None], interrupts: Interrupts) -> None:
        self.prompt = ""
        self.frame: FrameType | None = None
        self._rank = rank
        self._send = send
        self._interrupts = interrupts
        self._run: str | None = None
        self.is_there = self.is_gone = self._is_ended = False
        self._number = 0
        self._answers: queue.SimpleQueue[AnswerCommand] = queue.SimpleQueue()
        self._pid = os.getpid()
        builtins.input = self.ask_line
        getpass.getpass = self.ask_password

    def begin(self, run: str, is_there: bool) -> None:
        """Begin a run, in which somebody can answer or not."""
        self._run, self.is_there, self.is_gone, self._is_ended = run, is_there, False, False

    def end(self) -> None:
        """End the run."""
        self._run, self.is_there = None, False
        self.prompt, self.frame = "", None

    def take(self, answer: AnswerCommand) -> None:
        """Receive an answer; called by the side thread."""
        self._answers.put(answer)

    def ask_line(self, prompt: object = "") -> str:
        """Ask for a line, as `input` does, on the head."""
        self._check_head("input")
        return self._ask_value("input", str(prompt))

    def ask_password(
        self, prompt: str = "Password: ", stream: object = None, **options: Any
    ) -> str:
        """Ask for a password, as `getpass.getpass` does, on the head."""
        self._check_head("getpass")
        return self._ask_value("password", str(prompt))

    def check(self, sentence: str, name: str) -> None:
        """Raise an error if nobody can answer, or not on this rank."""
        if self.is_gone:
            raise EOFError("nobody answers")
        if not self.is_there:
            raise RuntimeError(sentence)
        self.check_thread(name)

    def check_thread(self, name: str) -> None:
        """Raise an error if this thread or process cannot ask anybody."""
        if os.getpid() != self._pid or threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                f"{name}() works in the main thread of a rank alone: this is another thread or a "
                "process that the cell has started (of a DataLoader, `num_workers=0` helps)."
            )

    def ask(self, kind: str, frame: FrameType | None, text: str = "", prompt: str = "") -> str:
        """Ask the user, and wait for the answer.

        Parameters
        ----------
        kind
            The kind of the prompt, as in `Prompted`.
        frame
            The user's frame that the prompt is about.
        text, prompt
            The debugger's output, and the prompt itself.

        Raises
        ------
        EOFError
            If the user ended the input, or is gone, or has stopped the run and is asked again.
        """
        assert self._run is not None
        if self._interrupts.was_requested:
            if self._is_ended:
                # An interpreter asks on after each interrupt, and would do so for ever.
                raise EOFError("the run was stopped")
            self._is_ended = True
            # It came during a command, and the debugger took it for an error of that command.
            raise KeyboardInterrupt
        self._number += 1
        streams.flush()
        self.prompt, self.frame = kind, frame
        try:
            self._send(
                Prompted(
                    self._rank,
                    self._run,
                    kind,
                    self._number,
                    prompt[:_LONGEST_PROMPT],
                    shortened(text),
                    place(frame),
                )
            )
            while (answer := self._answers.get())["number"] != self._number:
                pass  # the answer came too late
        finally:
            self.prompt, self.frame = "", None
        is_gone = answer["kind"] in ("gone", "none")
        why = answer["text"] or "nobody answers its prompt" if is_gone else ""
        # A notebook that attaches later reads all prompts again, and should not show this one.
        self._send(Prompted(self._rank, self._run, "over", self._number, text=why))
        if answer["kind"] == "line":
            return answer["text"]
        if is_gone:
            self.is_there, self.is_gone = False, True
            print(f"rank {self._rank} goes on: {why}", file=sys.stderr)
        raise EOFError("the user ended the input" if answer["kind"] == "eof" else "nobody answers")

    def _ask_value(self, kind: str, prompt: str) -> str:
        return self.ask(kind, sys._getframe(2), prompt=prompt)

    def _check_head(self, name: str) -> None:
        self.check(no_keyboard.sentence(name), name)
        if self._rank:
            here, instead = "notebook", ", or in a cell of the notebook"
            if program.is_running():
                here, instead = "terminal", ""
            if sys._getframe(2).f_globals.get("__name__") in _CONSOLES:
                raise RuntimeError(
                    f"a console or debugger of a terminal asks in the {here} from the head alone, "
                    f"and this is rank {self._rank}: call breakpoint() instead, or stop where a "
                    "cell raises an exception with `%%sky --pdb` above it."
                )
            raise RuntimeError(
                f"{name}() asks in the {here} from the head alone, and this is rank {self._rank}: "
                f"call it on rank 0 only{instead}."
            )


def place(frame: FrameType | None) -> str:
    """Return the position of a frame, like ``"cell [7], line 12"``."""
    if frame is None:
        return ""
    name, _ = stacks.place_of(frame.f_code.co_filename, cell_sources.titles)
    return f"{name}, line {frame.f_lineno}"


def shortened(text: str) -> str:
    """Return text without its middle if it is too long for a message."""
    if len(text) <= LONGEST_TEXT:
        return text
    left_out = len(text) - LONGEST_TEXT
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[… {left_out:,} characters not shown …]\n{text[-half:]}"
