"""Interrupts in processes that `multiprocessing` starts for the user's code.

What is wanted: Stop ends them without a word where they have not begun what they are for. Python
would print the traceback of its own code for each of them, and between the fork and that code the
copy of a rank would even leave the cell like the rank, and close what both have.

Their exit status is 0 then, as that of a worker of a ``DataLoader`` that is interrupted later. With
another one torch takes it for a failure, and raises an error of its own after the Stop.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, ModuleType
from typing import cast


def begin(forked_by: FrameType) -> None:
    """Leave interrupts of a process that was forked to Python, whose traceback has no line of ours.

    Parameters
    ----------
    forked_by
        What has called `os.fork`: the user's code, or `multiprocessing` or a copy of it.
    """
    util = forked_by.f_globals.get("util")
    if forked_by.f_code.co_name == "_launch" and hasattr(util, "register_after_fork"):
        end_quietly(cast(ModuleType, util))
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_quietly(util: ModuleType) -> None:
    """Have an interrupt end this process until it begins what it was started for.

    Parameters
    ----------
    util
        The module `multiprocessing.util`, or that of a copy.
    """

    def run_begins(_: object) -> None:
        if signal.getsignal(signal.SIGINT) is _end:  # and not one of the user's
            signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, _end)
    # The last of what is called before the run. It is kept by itself, as the key of its entry.
    util.register_after_fork(run_begins, run_begins)


def _end(signum: int, frame: FrameType | None) -> None:
    os._exit(0)
