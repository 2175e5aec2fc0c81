"""torch's profiler around a cell.

torch's own tables and files create Python objects for each event, of which a minute of training has
a million. Here the events are read directly from C++, and only what is shown is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_sky.node.rank.inspection.collectives import CollectiveRecords
from jupyter_sky.node.rank.profiling.torch_record import nothing, read_event, record_of
from jupyter_sky.transport.protocol.error_report import is_of_collective
from jupyter_sky.transport.protocol.profiling import TorchRecord

RECORDED_SECONDS = 30.0
"""Of a cell, at most."""

_RECORDED_EVENTS = 100_000
"""That are read at the end, which takes 10 microseconds each."""

_RECORDED_BYTES = 200 * _RECORDED_EVENTS
"""By which the process may grow until no more is recorded: an event takes torch 200 bytes, and two
kilobytes at the end. torch does not tell how many there are, of which a loop of tiny operations has
1,700,000 a second. More than are read would only take torch longer to make ready at the end."""

_POLL_EVERY = 0.05
_TROUGH_OF = 4  # polls: memory that a training step allocates and frees is not torch's events
_SETTLES_WITHIN = 0.3

_GOES_ON = "had begun and not ended: wait for it there"

_LOG_LEVEL = "KINETO_LOG_LEVEL"

_libc = ctypes.CDLL(None)


def begin() -> Callable[[], TorchRecord]:
    """Begin to record; return a function that ends it and returns the result."""
    if "torch" not in sys.modules:
        return lambda: nothing("torch is not imported: add `import torch` to an earlier cell")
    try:
        while _going_on and _going_on[-1].has_settled():
            _going_on.pop().stop()
        if _going_on:  # another profile would stop this one with it
            return lambda: nothing(f"a collective of an earlier cell {_GOES_ON}")
        if _is_on():
            return lambda: nothing("torch's profiler is on since an earlier cell: end it")
        return _Recorder().end
    except Exception as error:
        reason = f"torch's profiler did not start: {error}"
        return lambda: nothing(reason)


class _Recorder:
    """Records from its creation until `end`, or until there is enough.

    torch frees the events of a profile when it is stopped; an operation still in progress would
    then write its end into freed memory. So it is only stopped at the end of the cell, in the main
    thread, after the collectives in gloo's threads have ended. If there is enough before that,
    torch is told not to record further operations.
    """

    def __init__(self) -> None:
        self._begun = time.time_ns()
        self._changing = threading.Lock()
        self._over = threading.Event()
        self._stopped: int | None = None
        self._collectives = CollectiveRecords()
        self._collectives.begin()
        self._profiler, self._can_limit = _start()
        if self._can_limit:
            threading.Thread(target=self._watch, name="sky-profiler", daemon=True).start()

    def end(self) -> TorchRecord:
        """End it and return the recording."""
        self._over.set()
        ended = time.time_ns()
        with self._changing:
            stopped = self._stopped or ended
        if not _is_on():
            return nothing(
                "the code uses torch's profiler itself, which ended that of `--profile`: leave one "
                "of them out"
            )
        if not self.has_settled():
            _going_on.append(self)
            if self._can_limit and self._stopped is None:
                _record_no_more()  # of later cells, whose operations would fill the memory
            return nothing(f"a collective of the cell {_GOES_ON}")
        try:
            self.stop()
            found = sorted(self._profiler.kineto_results.events(), key=lambda each: each.start_ns())
            events = [read_event(each) for each in found[:_RECORDED_EVENTS]]
        except Exception as error:
            return nothing(f"torch's profiler failed: {str(error) or type(error).__name__}")
        count = len(found)
        if len(events) < count:
            stopped = min(stopped, events[-1].start)
            # Return a gigabyte or two to the system, which malloc would keep.
            del found
            self._profiler.kineto_results = None
            with contextlib.suppress(AttributeError):
                _libc.malloc_trim(0)
        return record_of(events, count, self._begun, ended, stopped)

    def has_settled(self) -> bool:
        """Wait for collectives in gloo's threads; return whether they are over."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return True
        # A failed collective never counts as ended, but then all of its group have failed.
        is_broken = is_of_collective(sys.exc_info()[1])
        return self._collectives.wait_until_ended(_SETTLES_WITHIN, on_gpu=False) or is_broken

    def stop(self) -> None:
        """Stop torch's profiler, which frees its records of operations in progress."""
        self._profiler.__exit__(None, None, None)

    def _watch(self) -> None:
        until = time.monotonic() + RECORDED_SECONDS
        lowest = _allocated()
        recent = deque([lowest], _TROUGH_OF)
        while not self._over.wait(_POLL_EVERY):
            recent.append(_allocated())
            lowest = min(lowest, recent[-1])
            if time.monotonic() < until and min(recent) - lowest < _RECORDED_BYTES:
                continue
            with self._changing:
                if not self._over.is_set():
                    self._stopped = time.time_ns()
                    _record_no_more()
            return


_going_on: list[_Recorder] = []
"""Profiles that could not be stopped at the end of their cell."""


def _allocated() -> int:
    """Return the bytes that this process has allocated with malloc, without large tensors."""
    read = getattr(_libc, "mallinfo2", None)  # glibc has it since 2.33
    if read is None:
        return 0
    read.restype = _MallInfo
    return int(read().uordblks)


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of ``malloc.h``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _record_no_more() -> None:
    from torch._C import _autograd
    from torch._C._profiler import ProfilerActivity

    parts = {ProfilerActivity.CPU}
    if sys.modules["torch"].cuda.is_available():
        parts.add(ProfilerActivity.CUDA)
    with contextlib.suppress(Exception), _quietly():  # private to torch: it may be gone
        _autograd._toggle_collection_dynamic(False, parts)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep torch's C++ code from writing warnings to stderr, where users would see them."""
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL("libc10.so"), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        yield
        return
    usual, level.value = level.value, 2  # errors
    try:
        yield
    finally:
        level.value = usual


def _start() -> tuple[Any, bool]:
    """Start torch's profiler; return it, and whether another thread may stop it."""
    # The internals of `torch.profiler`, which itself imports torch's compiler and takes seconds.
    from torch.autograd import profiler

    options: dict[str, Any] = {}
    with contextlib.suppress(ImportError, TypeError):
        from torch._C._profiler import _ExperimentalConfig

        # gloo's collectives run in its own threads.
        options["experimental_config"] = _ExperimentalConfig(profile_all_threads=True)
    can_limit = bool(options)
    if sys.modules["torch"].cuda.is_available():
        options["use_device"] = "cuda"
    made = profiler.profile(use_kineto=True, **options)
    # Otherwise it logs to stderr, where users would see it.
    is_set = _LOG_LEVEL in os.environ
    os.environ.setdefault(_LOG_LEVEL, "99")
    try:
        made.__enter__()
    finally:
        if not is_set:
            del os.environ[_LOG_LEVEL]
    return made, can_limit


def _is_on() -> bool:
    """Return whether torch's profiler is on; there is one, and whoever ends a profile ends it."""
    from torch.autograd import profiler

    return bool(profiler._is_profiler_enabled)
