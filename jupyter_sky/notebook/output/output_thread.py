"""Keeps the messages of a kernel whole when Stop comes while one is sent.

What happens: ipykernel sends all output from a thread of its own, and asks for each message whether
that is alive. Before Python 3.13, `Thread.is_alive` tries a lock of the thread, and takes an
exception in that moment, as of Ctrl-C, for its end (bpo-45274). From then on two threads send over
one socket, and the page gets parts of messages, or nothing.

The solution: whether this thread is alive is answered by the list of all threads.
"""

from __future__ import annotations

import sys
import threading

from IPython.core.interactiveshell import InteractiveShell


class OutputThread:
    """The thread of a kernel that sends its output; there is none in a terminal."""

    def __init__(self, shell: InteractiveShell) -> None:
        iopub = getattr(getattr(shell, "kernel", None), "iopub_thread", None)
        self._thread: threading.Thread | None = getattr(iopub, "thread", None)
        if self._thread and sys.version_info < (3, 13):
            vars(self._thread)["is_alive"] = self._is_alive

    def _is_alive(self) -> bool:
        return self._thread in threading.enumerate()

    def remove(self) -> None:
        """Let the thread answer again."""
        if self._thread:
            vars(self._thread).pop("is_alive", None)
