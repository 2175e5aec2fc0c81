"""The program that a cell is part of, where it is one: its arguments, and how it may end."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_NONE = ("",)
"""What ``sys.argv`` is where nobody has typed a command."""

_taken: tuple[str, ...] = _NONE


def take_words(words: Sequence[str] | None) -> None:
    """Make the name and arguments of a program those of this process.

    What the program itself has made of them stays until another program, or a notebook, uses the
    rank.
    """
    global _taken
    given = _NONE if words is None else tuple(words)
    if given != _taken:
        _taken, sys.argv = given, list(given)


def has_ended_well(error: BaseException | None, words: Sequence[str] | None) -> bool:
    """Return whether a program has called ``sys.exit`` because it was done.

    In a notebook that is an error, as the cells below would go on as if this one were complete.
    """
    return words is not None and isinstance(error, SystemExit) and not error.code
