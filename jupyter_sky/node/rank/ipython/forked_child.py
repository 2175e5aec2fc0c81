"""Child processes that the user's code forks, like the workers of a ``DataLoader``."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from jupyter_sky.errors import exit_status
from jupyter_sky.node.rank import streams


def collect_nothing_inherited() -> None:
    """Let children that are forked from now on keep the garbage that their parent had.

    A process group of torch waits for its threads when it is collected. A child has none of them,
    and would wait for ever, wherever its collector happens to run.
    """
    os.register_at_fork(after_in_child=gc.freeze)


def end_child(error: BaseException | None, traceback: Sequence[str]) -> NoReturn:
    """End a child that has returned from its cell as Python ends a script.

    It has the exit status and the error output of a script.

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
