"""Infers from a stack whether its thread computes, communicates, loads data or waits.

The calls usually tell. If a line of the user or of torch has called C code they do not: then the
system tells whether the thread is running, and torch whether a collective is in progress.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence

from jupyter_sky.node.rank.inspection.collectives import CollectiveRecords
from jupyter_sky.transport.protocol.profiling import Activity

_COMMUNICATION = (
    "/torch/distributed/distributed_c10d.py",
    "/torch/distributed/_functional_collectives.py",
    "/torch/distributed/nn/functional.py",
    "/jax/experimental/multihost_utils.py",
)
_DATA = (
    "/torch/utils/data/",
    "/torchdata/",
    "/webdataset/",
    "/litdata/",
    "-packages/datasets/",
    "/tensorflow/python/data/",
)
_WAITS = (
    "/threading.py",
    "/queue.py",
    "/selectors.py",
    "/subprocess.py",
    "/socket.py",
    "/ssl.py",
    "/multiprocessing/connection.py",
    "/multiprocessing/popen_fork.py",
    "/concurrent/futures/_base.py",
    "/asyncio/base_events.py",
)
_TORCH = ("/torch/autograd/", "/torch/nn/", "/torch/cuda/", "/torch/_tensor.py")

_RUNNING = 0.1
"""The part of a time that a thread has a processor, from which on it does not wait."""

_ASK_EVERY = 1.0
"""Seconds between two questions to torch: to tell what it has recorded takes it milliseconds."""


def by_calls(files: Sequence[str]) -> Activity | None:
    """Infer it from the files of a stack, the innermost first; ``None`` if not clear."""
    if any(file.endswith(_COMMUNICATION) for file in files):
        return "communication"
    if any(part in file for file in files for part in _DATA):
        return "data"
    if files and files[0].endswith(_WAITS):
        return "waiting"
    return None


class MainThread:
    """What the system and torch tell about the main thread."""

    def __init__(self, recorded: CollectiveRecords) -> None:
        self._recorded = recorded
        self._stat = -1
        with contextlib.suppress(OSError):
            self._stat = os.open(f"/proc/self/task/{os.getpid()}/stat", os.O_RDONLY)
        self._clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self._used = time.clock_gettime(self._clock)
        self._seen = time.monotonic()
        self._asked: dict[int, tuple[float, bool]] = {}

    def close(self) -> None:
        """Close opened files."""
        if self._stat >= 0:
            os.close(self._stat)
        self._stat = -1

    def was_running(self) -> bool:
        """Return whether the thread has used a processor, or wanted one, since the last call."""
        used, now = time.clock_gettime(self._clock), time.monotonic()
        share = (used - self._used) / max(now - self._seen, 1e-6)
        self._used, self._seen = used, now
        # A thread that waits for the GIL, which we hold now, also sleeps.
        return share >= _RUNNING or self._state() in ("R", "?")

    def activity(self, place: int, file: str, is_running: bool) -> Activity:
        """Return what the thread does if its calls do not tell.

        Parameters
        ----------
        place
            Identifies the innermost line.
        file
            The file of that line.
        is_running
            The result of `was_running`.
        """
        if is_running:
            return "compute"
        if self._is_in_collective(place):
            return "communication"
        # On a GPU, torch waits here for its own threads and the device, which are computing.
        is_torch = any(part in file for part in _TORCH)
        return "compute" if is_torch else "waiting"

    def _state(self) -> str:
        with contextlib.suppress(OSError, IndexError):
            return os.pread(self._stat, 512, 0).rpartition(b")")[2].split()[0].decode()
        return "?"

    def _is_in_collective(self, place: int) -> bool:
        """Return whether a collective is in progress; check only now and then for one line."""
        now = time.monotonic()
        asked, was = self._asked.get(place, (float("-inf"), False))
        if now - asked < _ASK_EVERY:
            return was
        # What NCCL has been given, the thread need not wait for.
        is_in = bool(self._recorded.read(on_gpu=False)[0])
        if len(self._asked) > 100:
            self._asked.clear()
        self._asked[place] = (time.monotonic(), is_in)
        return is_in
