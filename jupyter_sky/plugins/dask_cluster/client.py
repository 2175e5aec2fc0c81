"""Dask's client in the notebook, with a link to the dashboard that works in the browser."""

from __future__ import annotations

import asyncio
import contextlib
import re
from functools import cache
from typing import Any

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import SkyError

PAGE = "dask"
"""The name of the scheduler's pages among those of a cluster."""

_OTHER_LINKS = re.compile(
    r'<strong>Dashboard: ?</strong> *<a href="(?:None|http[^"]*)"[^>]*>[^<]*</a>'
)


@cache
def client_class() -> Any:
    """Return the class of clients, which is Dask's own except for the link."""
    import distributed

    class Client(distributed.Client):  # type: ignore[misc, unused-ignore]
        """A client of Dask on a cluster of jupyter_sky."""

        def __init__(self, *args: Any, cluster: Cluster, **kwargs: Any) -> None:
            from jupyter_sky.plugins.dask_cluster.modules import UserModules

            self._pages, self._modules = cluster.pages, UserModules(cluster)
            self._cluster_name = cluster.name
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]
            loop: Any = self.loop
            loop.asyncio_loop.set_exception_handler(_report)

        @property
        def dashboard_link(self) -> str | None:
            """The address of the dashboard for the browser; ``None`` outside Jupyter."""
            return self._pages.link(PAGE)

        def check_open(self) -> None:
            """Refuse to go on without a cluster, where Dask would fail on what it has closed.

            Raises
            ------
            SkyError
                If the cluster has ended.
            """
            if self.status == "closed":
                raise SkyError(
                    f"Dask on {self._cluster_name} has ended with its cluster: type `%sky status`, "
                    "or `client = %sky dask` for the client of another one."
                )

        def end_unwanted(self) -> None:
            """Have workers end tasks that nobody wants any more, without waiting for that."""
            from jupyter_sky.plugins.dask_cluster.stopping import end_unwanted

            async def tell() -> None:
                with contextlib.suppress(Exception):  # of any kind: a worker may be gone
                    await self.run(end_unwanted, wait=False)

            loop: Any = self.loop
            loop.add_callback(tell)

        def get(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().get(*args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]
            except KeyboardInterrupt as stop:
                stop.__traceback__ = None  # its frames are Dask's, and may refer to futures
                self.end_unwanted()
                raise

        def _graph_to_futures(self, *args: Any, **kwargs: Any) -> Any:
            self.check_open()
            self._modules.send(self)
            return super()._graph_to_futures(*args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]

        def _repr_html_(self) -> str:
            # Servers know their own addresses, which the browser cannot use.
            return _OTHER_LINKS.sub("", str(super()._repr_html_()))  # type: ignore[no-untyped-call, unused-ignore]

    return Client


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error of Dask's event loop, except how it wakes what waits for a released task.

    Nothing waits for that any more after a Stop, which would show a traceback of each task.
    """
    from distributed.client import AllExit

    if not isinstance(context.get("exception"), AllExit):
        loop.default_exception_handler(context)
