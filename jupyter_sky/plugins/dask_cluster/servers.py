"""Dask's scheduler and worker, without the ports at which they would answer anybody."""

from __future__ import annotations

from typing import Any

from distributed import Scheduler, Worker
from distributed.http.routing import RoutingApplication
from distributed.security import Security

from jupyter_sky.plugins.dask_cluster.settings import ProcessSettings, security
from jupyter_sky.providers.mtls import Credentials


class _NoHTTP:
    """A server that answers no HTTP: Dask's pages ask nobody who they are."""

    def start_http_server(self, routes: Any, *args: Any, **kwargs: Any) -> None:
        """Keep the routes, to which other parts of Dask add theirs, and listen nowhere."""
        self.http_application = RoutingApplication(routes)  # type: ignore[no-untyped-call, unused-ignore]


class PrivateScheduler(_NoHTTP, Scheduler):
    """A scheduler that answers its own workers and clients alone."""


class PrivateWorker(_NoHTTP, Worker):
    """A worker that answers its own scheduler, other workers and clients alone."""


def make(settings: ProcessSettings) -> Scheduler | Worker:
    """Return the server that settings describe; it starts when it is entered."""
    shown = Credentials(settings["authority"], settings["certificate"], settings["key"], ())
    made: Any = Security  # without types
    secure = made(**security(shown, settings["role"]))
    if settings["role"] == "scheduler":
        return PrivateScheduler(
            host=settings["host"],
            port=settings["port"],
            protocol="tls",
            security=secure,
            dashboard=False,
        )
    return PrivateWorker(
        settings["scheduler"],
        host=settings["host"],
        protocol="tls",
        security=secure,
        name=settings["name"],
        nthreads=settings["concurrency"],
        memory_limit=settings["memory"],
    )
