"""Makes functions and magics that ask the user raise an error if nobody can be asked."""

from __future__ import annotations

import builtins
import getpass
import sys
from typing import NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.node.rank.ipython import program

__tracebackhide__ = True

_NO_DEBUGGER = (
    "breakpoint() does not work on a rank: print what you want to see, or bring it to the notebook "
    "with --out."
)


def sentence(function: str) -> str:
    """Return what is said where nobody can be asked for a line or a password."""
    if program.is_running():
        return (
            f"{function}() needs somebody at a terminal, and nobody can be asked here: give the "
            "answer as an argument (of `jupyter sky run`, behind `--`), or in a variable of the "
            "environment."
        )
    return (
        f"{function}() does not work on a rank: call it in a cell of the notebook, and use the "
        "answer here."
    )


def refuse() -> None:
    """Make `input`, `getpass` and `breakpoint` raise in this process: there is no keyboard."""
    builtins.input = _no_input
    getpass.getpass = _no_password
    sys.breakpointhook = _no_debugger


def refuse_magics(shell: InteractiveShell) -> None:
    """Make IPython's magics for its debugger say where they belong, which is the notebook."""
    for name, magic in {"debug": _no_post_mortem, "pdb": _no_automatic_post_mortem}.items():
        shell.register_magic_function(magic, "line_cell", name)


def _no_input(prompt: object = "") -> NoReturn:
    raise RuntimeError(sentence("input"))


def _no_password(prompt: str = "", stream: object = None, **options: object) -> NoReturn:
    raise RuntimeError(sentence("getpass"))


def _no_debugger(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError(_NO_DEBUGGER)


def _no_post_mortem(line: str, cell: str = "") -> NoReturn:
    if line or cell:  # code to run in the debugger
        raise UsageError(
            "%debug runs no code on a rank: write `breakpoint()` above the line in which the "
            "debugger is to begin, and leave out %debug."
        )
    raise UsageError(
        "type %debug in a cell of its own, without %%sky: it looks at the last error of the ranks."
    )


def _no_automatic_post_mortem(line: str, cell: str = "") -> NoReturn:
    raise UsageError(
        "type `%%sky --pdb` above a cell to stop where it raises an exception; or %pdb in a cell "
        "of its own, without %%sky, to look at each error of the ranks."
    )
