"""Prompts of ranks in the notebook: the debugger's, and those of ``input`` and ``getpass``.

A rank asks with the event `Prompted`; the answer reaches it as text, in its side thread.
"""

from __future__ import annotations

from typing import Literal, TypedDict

LONGEST_ANSWER = 16 * 1024
"""Characters of an answer: it goes through a socket that has to take it at once."""

AnswerKind = Literal["line", "eof", "none", "gone"]


class Debugging(TypedDict):
    """How a run uses the debugger.

    Attributes
    ----------
    keyboard
        Whether somebody can answer prompts.
    stops
        Whether a rank stops where the cell raised an exception.
    looks_at
        The run whose error to debug, instead of running code; empty for the last one that failed,
        ``None`` if this is an ordinary run.
    """

    keyboard: bool
    stops: bool
    looks_at: str | None


class AnswerFields(TypedDict):
    """The user's answer to a prompt.

    Attributes
    ----------
    number
        Which prompt of the rank it is about.
    kind
        ``"line"``: the user typed ``text``; ``"eof"``: the user ended the input; ``"none"``: there
        is nobody to ask; ``"gone"``: the user is gone, for which ``text`` may say why.
    """

    number: int
    kind: str
    text: str


class AnswerRequest(AnswerFields):
    """``answer``: answer the prompt of a rank; ignored if the prompt is over."""

    run: str
    rank: int


class HoldRequest(TypedDict):
    """``hold``: until the end of a run, let its ranks wait for each other without a time limit.

    It also says that the user is there, and answers them.
    """

    run: str


class AnswerCommand(AnswerFields):
    """Pass an answer to the main thread, which waits for it at a prompt."""

    op: Literal["answer"]


class HoldCommand(TypedDict):
    """Let collectives that begin from now on wait for as long as the user is debugging."""

    op: Literal["hold"]
    run: str
