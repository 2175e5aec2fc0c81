"""Dask's client in the notebook, with a link to the dashboard that works in the browser."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import distributed
from distributed.client import AllExit
from distributed.scheduler import KilledWorker

from jupyter_sky.api.display.wording import has_magics, worded
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import SkyError
from jupyter_sky.plugins.dask_cluster.modules import UserModules
from jupyter_sky.plugins.dask_cluster.settings import PAGE
from jupyter_sky.plugins.dask_cluster.stopping import end_unwanted

_futures_of: Any = distributed.futures_of  # without types

_SENT_WITHIN = 0.02
"""Seconds in which a client sends what it has to say: it does so every 10 ms."""

_DATA_IS_LOST = {"already forgotten", "lost dependencies"}
"""Why the scheduler cancels tasks whose data cannot be made again; before 2025 it does not say."""

_LOG_WHAT_THEY_RAISE = ("distributed.protocol.pickle", "distributed.protocol.core")
"""Loggers that write an error before it is raised, which would fill the cell with it twice."""

_OTHER_LINKS = re.compile(
    r'<strong>Dashboard: ?</strong> *<a href="(?:None|http[^"]*)"[^>]*>[^<]*</a>'
)


class Client(distributed.Client):  # type: ignore[misc, unused-ignore]
    """A client of Dask on a cluster of jupyter_sky."""

    def __init__(self, *args: Any, cluster: Cluster, **kwargs: Any) -> None:
        self._pages, self._modules = cluster.pages, UserModules(cluster)
        self._sky_cluster = cluster
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]
        loop: Any = self.loop
        loop.asyncio_loop.set_exception_handler(_report)
        for name in _LOG_WHAT_THEY_RAISE:
            logging.getLogger(name).addFilter(_has_no_error)

    @property
    def dashboard_link(self) -> str | None:
        """The address of the dashboard for the browser; ``None`` outside Jupyter."""
        return self._pages.link(PAGE)

    def check_open(self) -> None:
        """Refuse to go on once it is closed, where Dask would fail on what it has closed.

        Raises
        ------
        SkyError
            If the cluster has ended, or the user has closed the client.
        """
        if self.status == "closed":
            raise self._why_closed()

    def _why_closed(self) -> SkyError:
        dask = f"Dask on {self._sky_cluster.name}"
        if self._sky_cluster.alive:
            typed = "type `client = %sky dask`, or " if has_magics() else ""
            return SkyError(
                f"this client of {dask} is closed: {typed}use `pool.dask()`, for an open one."
            )
        another = "use `pool.dask()` of another pool."
        if has_magics():
            another = "type `%sky status`, or `client = %sky dask` for the client of another one."
        return SkyError(f"{dask} has ended with its cluster: {another}")

    def sync(self, func: Any, *args: Any, **options: Any) -> Any:
        """Wait for what Dask's own thread does; all of the client's methods wait here."""
        self.check_open()
        try:
            return super().sync(func, *args, **options)  # type: ignore[no-untyped-call, unused-ignore]
        except KeyboardInterrupt as stop:
            stop.__traceback__ = None  # its frames are those of Dask's threads
            raise
        except Exception as error:
            # What waits when a client closes is cancelled, "for reason: unknown".
            is_cancelled = isinstance(error, distributed.CancelledError)
            if is_cancelled and self.status in ("closing", "closed"):
                raise self._why_closed() from None
            say_where_to_look(error)
            raise

    def send_modules(self) -> None:
        """Send the user's own modules, as they are now, to Dask's processes.

        The client does so before tasks, except in Dask's own thread, which cannot wait.
        """
        self._modules.send(self)

    def end_unwanted(self) -> None:
        """Have workers end tasks that nobody wants any more, without waiting for that."""

        async def tell() -> None:
            with contextlib.suppress(Exception):  # of any kind: a worker may be gone
                await self.run(end_unwanted, wait=False)

        loop: Any = self.loop
        loop.add_callback(tell)

    def get(  # type: ignore[override, unused-ignore]
        self, dsk: Any, keys: Any, *, sync: bool = True, **options: Any
    ) -> Any:
        waiting = {name: options.pop(name, None) for name in ("asynchronous", "direct")}
        get = partial(super().get, dsk, keys, sync=False, **options)
        if not sync:
            return get()
        found: Any = ()
        try:
            found = get()
            return self.gather(found, **waiting)  # type: ignore[no-untyped-call, unused-ignore]
        except KeyboardInterrupt as stop:
            stop.__traceback__ = None  # its frames are Dask's own, and may refer to futures
            with contextlib.suppress(Exception):  # of any kind: it may be closed by now
                self.sync(self._let_go, _futures_of(found))  # type: ignore[no-untyped-call, unused-ignore]
            raise
        finally:
            for future in _futures_of(found):
                future.release()

    async def _let_go(self, futures: Sequence[Any]) -> None:
        """Have the scheduler forget tasks, all at once, and workers end those that have begun.

        Dask releases one after the other as futures are let go, for thousands of tasks over
        seconds, and begins others in place of the first.
        """
        keys = [each.key for each in futures if self.refcount[each.key] == 1]
        self._send_to_scheduler(  # type: ignore[no-untyped-call, unused-ignore]
            {"op": "client-releases-keys", "keys": keys, "client": self.id}
        )
        self.end_unwanted()
        await asyncio.sleep(_SENT_WITHIN)  # before this thread is busy with letting them go

    def _graph_to_futures(self, *args: Any, **kwargs: Any) -> Any:
        self.check_open()
        self.send_modules()
        return super()._graph_to_futures(*args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]

    def _repr_html_(self) -> str:
        # Servers know their own addresses, which the browser cannot use.
        return _OTHER_LINKS.sub("", str(super()._repr_html_()))  # type: ignore[no-untyped-call, unused-ignore]


def say_where_to_look(error: Exception) -> None:
    """Add to an error of Dask that workers have ended where they may have said why."""
    if isinstance(error, KilledWorker):
        rank = str(getattr(error.last_worker, "name", "")).removeprefix("rank-")
        note = f"`%sky logs {rank}` shows what the last of them said; they may have lacked memory."
    elif getattr(error, "reason", None) in _DATA_IS_LOST:
        note = (
            "All workers that had data for it have ended; they may have lacked memory: "
            "`%sky logs 0`, and so for each rank, shows what they said."
        )
    else:
        return
    if (note := worded(note)) not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _has_no_error(record: logging.LogRecord) -> bool:
    return not record.exc_info


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error of Dask's event loop, except how it wakes what waits for a released task.

    Nothing waits for that any more after a Stop, which would show a traceback of each task.
    """
    if not isinstance(context.get("exception"), AllExit):
        loop.default_exception_handler(context)
