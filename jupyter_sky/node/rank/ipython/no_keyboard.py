"""Makes functions that ask the user raise an error if nobody can be asked."""

from __future__ import annotations

import builtins
import getpass
import sys
from typing import NoReturn

__tracebackhide__ = True

NO_INPUT = (
    "input() does not work on a rank: call it in a cell of the notebook, and use the answer here."
)
NO_PASSWORD = (
    "getpass() does not work on a rank: call it in a cell of the notebook, and use the answer here."
)
NO_DEBUGGER = (
    "breakpoint() does not work on a rank: print what you want to see, or bring it to the notebook "
    "with --out."
)
"""What is said where nobody can be asked."""


def refuse() -> None:
    """Make `input`, `getpass` and `breakpoint` raise in this process: there is no keyboard."""
    builtins.input = _no_input
    getpass.getpass = _no_password
    sys.breakpointhook = _no_debugger


def _no_input(prompt: object = "") -> NoReturn:
    raise RuntimeError(NO_INPUT)


def _no_password(prompt: str = "", stream: object = None, **options: object) -> NoReturn:
    raise RuntimeError(NO_PASSWORD)


def _no_debugger(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError(NO_DEBUGGER)
