"""The program that a run is part of, if any: its arguments, and how it may end."""

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
    """Set the program name and arguments of this process to those of a run's program.

    Changes that the program itself makes to them stay until another program, or a notebook's cell,
    uses the rank.
    """
    global _taken
    words = command["program"]
    if words is None and command["code"] is None:
        return
    given = _NONE if words is None else tuple(words)
    if given != _taken:
        _taken, sys.argv = given, list(given)


def is_running() -> bool:
    """Return whether the run in this process, or the last one, is part of a program."""
    return _taken != _NONE


def has_ended_well(error: BaseException | None, words: Sequence[str] | None) -> bool:
    """Return whether a program has called ``sys.exit`` because it was done.

    In a notebook that is an error: the cells below would run as if this one were complete.
    """
    return words is not None and isinstance(error, SystemExit) and not error.code


class Exit(ExitAutocall):  # type: ignore[misc]
    """``exit`` and ``quit`` in a cell or program: they do what `sys.exit` does."""

    def __call__(self, status: Any = None) -> NoReturn:
        raise SystemExit(status)
