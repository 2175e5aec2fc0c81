"""Runs the notebook's joblib on Dask, in each thread, unless the user chooses otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import joblib  # type: ignore[import-untyped, unused-ignore]
from joblib import Parallel, parallel, parallel_config
from joblib.parallel import (  # type: ignore[import-untyped, unused-ignore]
    FallbackToBackend,
    SequentialBackend,
)

from jupyter_sky.plugins.dask_cluster.joblib_calls import EndingCalls
from jupyter_sky.plugins.dask_cluster.progress import CountedCalls, DaskProgress

_NAME = "jupyter-sky"


@dataclass(frozen=True, eq=False)
class _Use:
    """joblib's use of Dask on one cluster.

    Attributes
    ----------
    backend
        Makes joblib's backend for it.
    config
        joblib's ``parallel_config`` of the thread that has entered it.
    """

    backend: Callable[..., Any]
    config: Any


_uses: list[_Use] = []
"""Those that were entered and not left, in order: the last one is joblib's default."""

_before: list[Callable[[], None]] = []
"""What makes joblib as it was before the first of them."""


@contextmanager
def used_everywhere(client: Callable[[], Any], progress: DaskProgress) -> Iterator[None]:
    """Let joblib use Dask, and show its progress.

    In this thread, which runs the notebook's cells, Dask is set like a user's choice. In other
    threads it is joblib's default, and calls that prefer threads run in threads here.

    Of several clusters, joblib uses the one that was entered last. They are left in any order.
    """

    def backend(nesting_level: int | None = None, **options: Any) -> Any:
        made = Backend(client=client(), **options)
        made.nesting_level, made.progress, made.find_client = nesting_level, progress, client
        return made

    if not _uses:
        _before.extend((_keep_default(), _count_calls()))
    use = _Use(backend, parallel_config(backend=backend()))
    _uses.append(use)
    _set_default()
    try:
        yield
    finally:
        _uses.remove(use)
        _leave_config(use.config)
        if _uses:
            _set_default()
        while not _uses and _before:
            _before.pop()()


def _set_default() -> None:
    joblib.register_parallel_backend(_NAME, _uses[-1].backend, make_default=True)


def _leave_config(config: Any) -> None:
    """Take one of joblib's configurations away, also from below others of the same thread."""
    for other in _uses:
        if other.config.old_parallel_config is config.parallel_config:
            other.config.old_parallel_config = config.old_parallel_config
            return
    config.unregister()


def _keep_default() -> Callable[[], None]:
    former = parallel.DEFAULT_BACKEND

    def restore() -> None:
        if former in parallel.BACKENDS:
            joblib.register_parallel_backend(former, parallel.BACKENDS[former], make_default=True)
        parallel.BACKENDS.pop(_NAME, None)

    return restore


def _count_calls() -> Callable[[], None]:
    """Count the calls of each ``Parallel`` that uses Dask; return what ends this."""
    call = Parallel.__call__

    @wraps(call)
    def counting(self: Any, iterable: Any) -> Any:
        __tracebackhide__ = True  # IPython leaves it out of tracebacks then
        if isinstance(backend := self._backend, Backend):
            backend.calls = iterable = CountedCalls(iterable)
        return call(self, iterable)

    def restore() -> None:
        Parallel.__call__ = call

    Parallel.__call__ = counting
    return restore


class Backend(EndingCalls):
    """The backend of the notebook, which leaves sequential work to this process."""

    progress: DaskProgress | None = None
    find_client: Callable[[], Any] | None = None
    calls: CountedCalls | None = None
    _end: Any = None

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        return int(super().configure(n_jobs, parallel, **options))

    def effective_n_jobs(self, n_jobs: int) -> int:
        if n_jobs == 1:
            return 1
        if self.find_client:
            self.client = self.find_client()  # its user may have closed the last one
        self.client.check_open()
        # joblib does the work of a single job here, which is not where that worker is.
        return max(2, int(super().effective_n_jobs(n_jobs)))

    def start_call(self) -> None:
        self.client.send_modules()  # the calls become tasks in Dask's own thread
        super().start_call()
        if self.progress and self.calls:
            parallel = self.parallel
            self._end = self.progress.of_calls(lambda: int(parallel.n_completed_tasks), self.calls)

    def let_go(self) -> None:
        """Let go of all calls, and interrupt those that run: joblib only forgets them."""
        super().let_go()
        self.client.end_unwanted()

    def stop_call(self) -> None:
        super().stop_call()
        end, self._end, self.calls = self._end, None, None
        if end:
            end()
