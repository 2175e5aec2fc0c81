"""Errors of a cell that are shown as one sentence: a traceback would only hide it."""

from __future__ import annotations

import re

from IPython.core.error import UsageError

from jupyter_sky.errors import DebuggerQuit

_OURS = re.compile(r"magic (?:function )?`(%{1,2})sky` not found")


def sentence_of(error: BaseException) -> str | None:
    """Return the sentence to show for an error; ``None`` to show its traceback."""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"SystemExit: the cell called sys.exit({code}); the rank and its variables stay."
    if isinstance(error, KeyboardInterrupt):
        # Nobody needs its position. Inside a library as large as torch, finding it takes a second
        # the first time, which would delay the end of the run.
        return "KeyboardInterrupt"
    if isinstance(error, DebuggerQuit):
        return f"DebuggerQuit: {error}"
    if isinstance(error, UsageError):  # IPython's, of a magic
        found = _OURS.search(str(error))
        if found and found[1] == "%%":
            return (
                "UsageError: `%%sky` is above this cell already: put what is below the second one "
                "into a cell of its own."
            )
        if found:
            return "UsageError: %sky is not there on the ranks: type it in a cell of its own."
        return f"UsageError: {error}"
    return None
