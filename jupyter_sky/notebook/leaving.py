"""Is it Stop, or the end of the kernel? What a cluster is told depends on it."""

from __future__ import annotations

import time

from IPython.core.interactiveshell import InteractiveShell

_WITHIN = 0.15
_SLICE = 0.01


def is_leaving(shell: InteractiveShell) -> bool:
    """Return whether an interrupt was the first sign of this kernel's end.

    Jupyter interrupts a kernel before it restarts it or shuts it down, and says so, or kills it, at
    once after that. What runs on a cluster shall outlive the kernel: only Stop stops it.
    """
    if not hasattr(shell, "kernel"):
        return False
    deadline = time.monotonic() + _WITHIN
    while not shell.exit_now and time.monotonic() < deadline:
        time.sleep(_SLICE)
    return bool(shell.exit_now)
