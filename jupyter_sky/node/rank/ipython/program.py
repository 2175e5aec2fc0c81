"""The program that a run is part of, where it is one: its arguments, and how it may end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.autocall import ExitAutocall

if TYPE_CHECKING:
    from jupyter_sky.transport.protocol.rank_messages import RunCommand

_NONE = ("",)
"""What ``sys.argv`` is where nobody has typed a command."""

_taken: tuple[str, ...] = _NONE


def begin(command: RunCommand) -> None:
    """Make the name and arguments of the program that a run is part of those of this process.

    What the program itself has made of them stays until another program, or the cell of a notebook,
    uses the rank; what is installed and sent in between does not.
    """
    global _taken
    words = command["program"]
    if words is None and command["code"] is None:
        return
    given = _NONE if words is None else tuple(words)
    if given != _taken:
        _taken, sys.argv = given, list(given)


def has_ended_well(error: BaseException | None, words: Sequence[str] | None) -> bool:
    """Return whether a program has called ``sys.exit`` because it was done.

    In a notebook that is an error, as the cells below would go on as if this one were complete.
    """
    return words is not None and isinstance(error, SystemExit) and not error.code


class Exit(ExitAutocall):  # type: ignore[misc]
    """``exit`` and ``quit`` where a cell or program runs: what `sys.exit` does, with its status."""

    def __call__(self, status: Any = None) -> NoReturn:
        raise SystemExit(status)
