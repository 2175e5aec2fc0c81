"""Errors of a cell that are shown as one sentence: a traceback would only hide it."""

from __future__ import annotations

import re

from IPython.core.error import UsageError

from jupyter_sky.errors import DebuggerQuit

_OURS = re.compile(r"magic (function )?`%{1,2}sky` not found")


def sentence_of(error: BaseException) -> str | None:
    """Return what is shown of an error; ``None`` for one whose traceback is shown."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"SystemExit: the cell called sys.exit({code}); the rank and its variables stay."
    if isinstance(error, KeyboardInterrupt):
        # Nobody reads where it came. To find that out takes a second, the first time, inside of
        # a library as large as torch, and everyone waits who is told that the run has ended.
        return "KeyboardInterrupt"
    if isinstance(error, DebuggerQuit):
        return f"DebuggerQuit: {error}"
    if isinstance(error, UsageError):  # IPython's, of a magic
        if _OURS.search(str(error)):
            return "UsageError: %sky is not there on the ranks: type it in a cell of its own."
        return f"UsageError: {error}"
    return None
