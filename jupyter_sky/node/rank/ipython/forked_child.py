"""The end of a child that the user's code has forked, and that came out of its cell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from jupyter_sky.errors import exit_status
from jupyter_sky.node.rank import streams


def end_child(error: BaseException | None, traceback: Sequence[str]) -> NoReturn:
    """End this process as Python ends a script, with its status, and what it says of an error.

    Parameters
    ----------
    error
        What the cell has raised.
    traceback
        The lines that a cell shows of it.
    """
    status = 0 if error is None else 1
    with streams.errors_printed():
        if isinstance(error, SystemExit):
            status = exit_status(error)
        elif error is not None:
            print("\n".join(traceback), file=sys.stderr)
    streams.flush()
    os._exit(status)
