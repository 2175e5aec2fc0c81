"""Dask's scheduler and worker, without the ports on which they would answer anybody."""

from __future__ import annotations

from typing import Any

import dask.config
from distributed import Scheduler, Worker
from distributed.comm.addressing import get_address_host
from distributed.comm.utils import get_tcp_server_addresses
from distributed.http.routing import RoutingApplication
from distributed.security import Security
from distributed.system import MEMORY_LIMIT
from distributed.worker_state_machine import RescheduleEvent
from tornado.httpserver import HTTPServer

from jupyter_sky.plugins.dask_cluster.counting import TaskCounter
from jupyter_sky.plugins.dask_cluster.replicas import POLICY
from jupyter_sky.plugins.dask_cluster.settings import ProcessSettings, security
from jupyter_sky.plugins.dask_cluster.stopping import RunningTasks
from jupyter_sky.providers.mtls import Credentials


class PrivateScheduler(Scheduler):
    """A scheduler that only answers, and shows pages to, its own workers and clients."""

    def __init__(self, *args: Any, shown: Security, port_of_pages: int, **kwargs: Any) -> None:
        self._shown = shown
        self._port_of_pages = port_of_pages
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]

    def start_http_server(self, routes: Any, *args: Any, **kwargs: Any) -> None:
        """Serve the pages over TLS, requiring the certificate of a client."""
        self.http_application = RoutingApplication(routes)  # type: ignore[no-untyped-call, unused-ignore]
        context = self._shown.get_listen_args("scheduler")["ssl_context"]  # type: ignore[no-untyped-call, unused-ignore]
        self.http_server = HTTPServer(self.http_application, ssl_options=context)
        address = self._start_address
        host = get_address_host(address[0] if isinstance(address, list) else address)
        self.http_server.listen(self._port_of_pages, host)
        [bound, *_] = get_tcp_server_addresses(self.http_server)  # type: ignore[no-untyped-call, unused-ignore]
        self.http_server.address, self.http_server.port = bound[:2]
        self.services["dashboard"] = self.http_server


class PrivateWorker(Worker):
    """A worker that only answers its own scheduler, other workers and clients.

    Attributes
    ----------
    running_tasks
        The tasks that it runs, which can be ended.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.running_tasks = RunningTasks(self)
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Carry out a task; of one that was interrupted, nobody gets to see how it ended.

        Somebody may want it again since: then it begins anew.
        """
        done: Any = None
        try:
            done = await super().execute(key, stimulus_id=stimulus_id)
        except KeyboardInterrupt:
            if not self.running_tasks.was_interrupted(key):
                raise
        else:
            if not self.running_tasks.was_interrupted(key):
                return done
        return RescheduleEvent(key=key, stimulus_id=f"interrupted-{stimulus_id}")

    def start_http_server(self, routes: Any, *args: Any, **kwargs: Any) -> None:
        """Keep the routes, to which other parts of Dask add theirs, without listening."""
        self.http_application = RoutingApplication(routes)  # type: ignore[no-untyped-call, unused-ignore]

    async def close(self, *args: Any, **kwargs: Any) -> str | None:  # type: ignore[override, unused-ignore]
        """Close without waiting for tasks that run: the process ends with them.

        Otherwise ``client.restart()``, by which users get rid of such tasks, would time out.
        """
        return await super().close(*args, **{**kwargs, "executor_wait": False})


def make(settings: ProcessSettings) -> Scheduler | Worker:
    """Return the server for settings; it starts when it is entered."""
    shown = Credentials(settings["authority"], settings["certificate"], settings["key"], ())
    made: Any = Security  # without types
    secure = made(**security(shown, settings["role"]))
    # In the folder that Dask has by default, another user could exchange what it reads back.
    if dask.config.get("temporary-directory") is None:
        dask.config.set({"temporary-directory": settings["folder"]})
    if settings["role"] == "scheduler":
        # Leave out the page of Dask that proxies requests to other addresses.
        routes = dask.config.get("distributed.scheduler.http.routes")
        kept = [route for route in routes if route != "distributed.http.proxy"]
        # Settings that are only read later are not restored.
        dask.config.set(
            {"distributed.scheduler.active-memory-manager.policies": [{"class": POLICY}]}
        )
        with dask.config.set({"distributed.scheduler.http.routes": kept}):
            scheduler = PrivateScheduler(
                host=settings["host"],
                port=settings["port"],
                protocol="tls",
                security=secure,
                shown=secure,
                port_of_pages=settings["pages"],
                dashboard=True,
            )
        scheduler.add_plugin(TaskCounter(scheduler))  # type: ignore[no-untyped-call, unused-ignore]
        return scheduler
    return PrivateWorker(
        settings["scheduler"],
        host=settings["host"],
        protocol="tls",
        security=secure,
        name=settings["name"],
        nthreads=settings["concurrency"],
        memory_limit=settings["memory"] or MEMORY_LIMIT // settings["beside"],
    )
