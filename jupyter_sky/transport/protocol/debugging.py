"""Prompts of ranks in the notebook: the debugger's, and those of ``input`` and ``getpass``.

A rank asks with the event `Prompted`; what the user types comes back as text, by the side thread.
"""

from __future__ import annotations

from typing import Literal, TypedDict

LONGEST_ANSWER = 16 * 1024
"""Characters of an answer: it goes through a socket that has to take it at once."""

AnswerKind = Literal["line", "eof", "none", "gone"]


class Debugging(TypedDict):
    """What a run has for the debugger.

    Attributes
    ----------
    keyboard
        Whether somebody answers prompts.
    stops
        Whether a rank stops where the cell has raised an exception.
    looks_at
        The run whose error the debugger should look at, instead of code; empty for the last one
        that failed. ``None`` where the run is not that of a debugger.
    """

    keyboard: bool
    stops: bool
    looks_at: str | None


class AnswerFields(TypedDict):
    """What the user answers to a prompt.

    Attributes
    ----------
    number
        Which prompt of the rank it is about.
    kind
        ``"line"``: what was typed is ``text``; ``"eof"``: the user ended the input; ``"none"``:
        nobody can be asked; ``"gone"``: the notebook is not there any more.
    """

    number: int
    kind: str
    text: str


class AnswerRequest(AnswerFields):
    """``answer``: answer the prompt of a rank; one that is over takes no notice."""

    run: str
    rank: int


class HoldRequest(TypedDict):
    """``hold``: let the ranks of a run wait for each other without a time limit, to its end."""

    run: str


class AnswerCommand(AnswerFields):
    """Give an answer to the main thread, which waits for it at a prompt."""

    op: Literal["answer"]


class HoldCommand(TypedDict):
    """Let collectives that begin from now on wait as long as the user looks around."""

    op: Literal["hold"]
    run: str
