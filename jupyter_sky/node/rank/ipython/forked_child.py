"""Ends a child process that the user's code has forked and that has returned from its cell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from jupyter_sky.errors import exit_status
from jupyter_sky.node.rank import streams


def end_child(error: BaseException | None, traceback: Sequence[str]) -> NoReturn:
    """End this process as Python ends a script, with its exit status and error output.

    Parameters
    ----------
    error
        The exception that the cell raised, if any.
    traceback
        The lines of its traceback, as a cell shows it.
    """
    status = 0 if error is None else 1
    with streams.errors_printed():
        if isinstance(error, SystemExit):
            status = exit_status(error)
        elif error is not None:
            print("\n".join(traceback), file=sys.stderr)
    streams.flush()
    os._exit(status)
