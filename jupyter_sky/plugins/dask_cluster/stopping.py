"""Ends tasks that a worker runs and that nobody wants any more, as after a Stop.

Dask itself lets them go on to their end, since a thread cannot be ended. Here, the interrupt that
Stop raises in cells is raised in the task, at its next line of Python. It is raised once: the task
may be saving something then.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from types import FrameType
from typing import Any

_WITHIN = 5.0  # seconds in which a worker hears from the scheduler what is not wanted any more
_EVERY = 0.05
_IMPORTS = "<frozen importlib._bootstrap>"


class RunningTasks:
    """The tasks that a worker runs.

    Parameters
    ----------
    worker
        The worker.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._interrupted: dict[Any, int] = {}

    async def end_unwanted(self) -> None:
        """Interrupt those that nobody wants any more, or will not within a moment."""
        until = time.monotonic() + _WITHIN
        while not self._interrupt() or time.monotonic() < until:
            await asyncio.sleep(_EVERY)

    def was_interrupted(self, key: Any) -> bool:
        """Return whether a task that has ended was interrupted, and forget it."""
        ident = self._interrupted.pop(key, None)
        if ident is None:
            return False
        with self._worker.active_threads_lock:
            if self._worker.active_threads.get(ident, key) == key:
                self._worker.active_threads.pop(ident, None)  # the interrupt may have come first
                _raise_in(ident, None)  # or not at all, and must not meet the next task
        return True

    def _interrupt(self) -> bool:
        """Interrupt tasks; return whether no import is waited for."""
        frames, tasks = sys._current_frames(), self._worker.state.tasks
        is_complete = True
        with self._worker.active_threads_lock:
            for ident, key in self._worker.active_threads.items():
                is_unwanted = key in tasks and tasks[key].state == "cancelled"
                if not is_unwanted or key in self._interrupted:
                    continue
                if _is_importing(frames.get(ident)):
                    is_complete = False  # half a module would fail in all later tasks
                    continue
                self._interrupted[key] = ident
                _raise_in(ident, KeyboardInterrupt)
        return is_complete


async def end_unwanted(dask_worker: Any) -> None:
    """Call `RunningTasks.end_unwanted` on a worker."""
    await dask_worker.running_tasks.end_unwanted()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            return True
        frame = frame.f_back
    return False


def _raise_in(ident: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread when it next runs Python; ``None`` withdraws one."""
    raised = ctypes.py_object(error) if error else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised)
