"""Runs the notebook's joblib on Dask, in each thread, unless the user chooses otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from jupyter_sky.plugins.dask_cluster.progress import CountedCalls, DaskProgress

_NAME = "jupyter-sky"


@contextmanager
def used_everywhere(client: Any, progress: DaskProgress) -> Iterator[None]:
    """Let joblib use Dask, and show its progress.

    In this thread, which runs the notebook's cells, Dask is set like a user's choice. In other
    threads it is joblib's default, and calls that prefer threads run in threads here.
    """
    import joblib  # type: ignore[import-untyped, unused-ignore]
    from joblib import parallel  # type: ignore[import-untyped, unused-ignore]

    make = _backend_class()

    def backend(nesting_level: int | None = None, **options: Any) -> Any:
        made = make(client=client, **options)
        made.nesting_level, made.progress = nesting_level, progress
        return made

    former = parallel.DEFAULT_BACKEND
    joblib.register_parallel_backend(_NAME, backend, make_default=True)
    try:
        with joblib.parallel_config(backend=_NAME), _counted(make):
            yield
    finally:
        if former in parallel.BACKENDS:
            joblib.register_parallel_backend(former, parallel.BACKENDS[former], make_default=True)
        parallel.BACKENDS.pop(_NAME, None)


@contextmanager
def _counted(backend_class: Any) -> Iterator[None]:
    """Count the calls of each ``Parallel`` that uses Dask."""
    from joblib import Parallel

    call = Parallel.__call__

    @wraps(call)
    def counting(self: Any, iterable: Any) -> Any:
        if isinstance(backend := self._backend, backend_class):
            backend.calls = iterable = CountedCalls(iterable)
        return call(self, iterable)

    Parallel.__call__ = counting
    try:
        yield
    finally:
        Parallel.__call__ = call


@cache
def _backend_class() -> Any:
    from joblib._dask import DaskDistributedBackend  # type: ignore[import-untyped, unused-ignore]
    from joblib.parallel import (  # type: ignore[import-untyped, unused-ignore]
        FallbackToBackend,
        SequentialBackend,
    )

    class Backend(DaskDistributedBackend):  # type: ignore[misc, unused-ignore]
        """joblib's own backend for Dask, which leaves sequential work to this process."""

        progress: DaskProgress | None = None
        calls: CountedCalls | None = None
        _end: Any = None

        def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
            if n_jobs == 1:
                raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
            return int(super().configure(n_jobs, parallel, **options))

        def effective_n_jobs(self, n_jobs: int) -> int:
            return 1 if n_jobs == 1 else int(super().effective_n_jobs(n_jobs))

        def start_call(self) -> None:
            super().start_call()
            if self.progress and self.calls:
                parallel = self.parallel
                self._end = self.progress.of_calls(
                    lambda: int(parallel.n_completed_tasks), self.calls
                )

        def stop_call(self) -> None:
            super().stop_call()
            end, self._end, self.calls = self._end, None, None
            if end:
                end()

    return Backend
