"""joblib's backend for Dask, except that every call ends: joblib's own waits for some for ever.

So it does if a worker dies of a call, and if an argument, a result or an error cannot be sent.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

from joblib import register_parallel_backend  # type: ignore[import-untyped, unused-ignore]
from joblib._dask import DaskDistributedBackend  # type: ignore[import-untyped, unused-ignore]
from joblib._utils import _ExceptionWithTraceback  # type: ignore[import-untyped, unused-ignore]

from jupyter_sky.plugins.dask_cluster.client import say_where_to_look


class EndingCalls(DaskDistributedBackend):  # type: ignore[misc, unused-ignore]
    """Has Dask carry out calls, and tells joblib how each of them ended.

    Attributes
    ----------
    open_futures
        Those of the calls that have not ended.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.open_futures: set[Any] = set()

    def submit(
        self, func: Any, callback: Callable[[Any], None] | None = None
    ) -> concurrent.futures.Future[None]:
        """Have a worker carry out calls, and call back with their results, or with an error."""
        ending = self._carry_out(func, callback or (lambda _: None))
        return asyncio.run_coroutine_threadsafe(ending, self.client.loop.asyncio_loop)

    apply_async = submit  # its name until joblib 1.4

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Let go of all calls."""
        self.client.loop.add_callback(self.let_go)

    def let_go(self) -> None:
        """Let go of all calls, in Dask's own thread."""
        for future in list(self.open_futures):
            future.release()

    async def _collect(self) -> None:
        """Do nothing, where joblib's own looks for the ends of calls."""

    async def _carry_out(self, func: Any, callback: Callable[[Any], None]) -> None:
        future: Any = None
        try:
            batch, tasks = await self._to_func_args(func)
            future = self.client.submit(
                CallsOnWorker(batch),
                tasks=tasks,
                key=f"{batch!r}-{uuid.uuid4().hex}",
                **self.submit_kwargs,
            )
            self.open_futures.add(future)
            ended = await future
        except Exception as error:
            say_where_to_look(error)
            if future is not None and future.status != "finished":
                # Without the frames of this side.
                error.__traceback__ = _of_calls(await future.traceback())
            ended = _ExceptionWithTraceback(error) if error.__traceback__ else error
        finally:
            self.open_futures.discard(future)
        callback(ended)


def _of_calls(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of a worker's traceback that is not of this file."""
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") == __name__:
        traceback = traceback.tb_next
    return traceback


class CallsOnWorker:
    """Calls, on a worker.

    Their errors are raised, since Dask can send those of every class. joblib would return them.

    Parameters
    ----------
    batch
        joblib's batch of calls.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __call__(self, tasks: Any) -> Any:
        register_parallel_backend("dask", EndingCalls)  # for what the calls do in parallel
        try:
            return self._batch(tasks=tasks)
        except Exception:
            raise
        except BaseException as error:  # raised, it would end the worker
            return _ExceptionWithTraceback(error)
