"""What asks for a keyboard, which no rank has: refused at once, with what to do instead."""

from __future__ import annotations

import builtins
import getpass
import sys
from typing import NoReturn


def refuse() -> None:
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
