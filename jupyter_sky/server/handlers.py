"""The sidebar's routes, below ``{base_url}jupyter-sky/api/``; ``schema.json`` describes them."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ensure_async, url_path_join
from tornado.web import HTTPError, RequestHandler, authenticated

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.server import cli_process, cluster_list, kernel_environment
from jupyter_sky.server.actions import NAME, Actions
from jupyter_sky.server.cluster_list import Found, Served
from jupyter_sky.server.kernel_reports import KernelReports
from jupyter_sky.server.log_stream import LiveHandler
from jupyter_sky.server.schema import Invalid, check
from jupyter_sky.server.status_poller import StatusPoller

RESOURCE = "jupyter_sky"
"""What an authorizer of the server is asked about."""

_BODIES = {"restart": "Restart", "scale": "Scale"}


def add_routes(serverapp: Any) -> None:
    """Add our routes to a Jupyter server."""
    sky = Sky(serverapp)
    base = url_path_join(serverapp.base_url, "jupyter-sky", "api")
    routes: list[tuple[str, type[RequestHandler]]] = [
        (r"clusters", ClustersHandler),
        (r"clusters/([^/]+)/(interrupt|restart|scale|down)", ActionHandler),
        (r"clusters/([^/]+)/logs/(\d{1,6})", LogHandler),
        (r"clusters/([^/]+)/live/(\d{1,6})", LiveHandler),
        (r"kernels/([^/]+)", KernelHandler),
        (r"offers", OffersHandler),
        (r".*", UnknownHandler),
    ]
    rules = [(url_path_join(base, path), handler, {"sky": sky}) for path, handler in routes]
    serverapp.web_app.add_handlers(".*$", rules)


class Sky:
    """What the routes share."""

    def __init__(self, serverapp: Any) -> None:
        self._serverapp = serverapp
        self.root = Path(serverapp.root_dir).resolve()
        self.hearing = KernelReports(Path(serverapp.runtime_dir))
        self.looks = StatusPoller()
        self.actions = Actions(self.hearing)

    async def found(self) -> Found:
        """Return what there is by now."""
        return await asyncio.to_thread(cluster_list.find, self.hearing)

    async def name(self, identity: str) -> str:
        """Return the name of a cluster.

        Raises
        ------
        HTTPError
            When there is none with this id.
        """
        row = (await self.found()).row(identity)
        if row is None or not NAME.fullmatch(row.name):
            raise HTTPError(404, NO_CLUSTER)
        return row.name

    async def served(self) -> dict[str, Served]:
        """Return the kernels of this server."""
        manager = self._serverapp.kernel_manager
        paths = {
            session["kernel"]["id"]: session["path"]
            for session in await ensure_async(self._serverapp.session_manager.list_sessions())
            if session.get("type") == "notebook" and session.get("kernel")
        }
        return {
            kernel["id"]: Served(paths.get(kernel["id"]), kernel["execution_state"] == "busy")
            for kernel in await ensure_async(manager.list_kernels())
        }

    def kernel_spec(self, kernel: str) -> Any:
        """Return the specification of a kernel of this server; ``None`` if there is none."""
        manager = self._serverapp.kernel_manager
        return manager.get_kernel(kernel).kernel_spec if kernel in manager else None


NO_CLUSTER = "that cluster is not there any more."

Method = Callable[..., Awaitable[None]]


def _route(method: Method) -> Method:
    """Let in who may, and answer what goes wrong in a sentence."""

    @authenticated
    @authorized
    @functools.wraps(method)
    async def answering(self: Handler, *args: str) -> None:
        try:
            await method(self, *args)
        except SkyError as error:
            self.set_status(400 if isinstance(error, UsageError) else 409)
            self.finish({"message": str(error)})

    return cast(Method, answering)


class Handler(APIHandler):
    """A route; every method of one is made with `_route`."""

    auth_resource = RESOURCE

    def initialize(self, sky: Sky) -> None:
        self.sky = sky

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with a Trouble."""
        error = kwargs.get("exc_info", (None, None))[1]
        message = getattr(error, "log_message", None)
        self.finish({"message": message or _WORDS.get(status_code, _OTHERWISE)})

    def number(self, name: str, otherwise: int, most: int) -> int:
        """Return a number of the query."""
        given = self.get_query_argument(name, str(otherwise))
        if not re.fullmatch(r"\d{1,9}", given, re.ASCII) or not 0 < int(given) <= most:
            raise HTTPError(400, f"{name} is a whole number from 1 to {most:,}.")
        return int(given)


_OTHERWISE = "The server could not do it; its log says why."
_WORDS = {
    403: "You may not do this: log in to Jupyter again, and reload the page.",
    404: "There is no such thing here.",
    405: "This is not how to ask for it.",
}


class ClustersHandler(Handler):
    """All clusters."""

    _track_activity = False  # a page that polls is nobody at work: idle servers shall be culled

    @_route
    async def get(self) -> None:
        found = await self.sky.found()
        states = await self.sky.looks.states(found.unattended)
        failures = self.sky.actions.failures(found)
        served = await self.sky.served()
        self.finish(cluster_list.answer(found, states, failures, served, self.sky.root))


class ActionHandler(Handler):
    """What is done with a cluster."""

    @_route
    async def post(self, identity: str, action: str) -> None:
        options = self._options(action)
        found = await self.sky.found()
        if not found.row(identity) and not found.live(identity):
            raise HTTPError(404, NO_CLUSTER)
        said = await self.sky.actions.act(found, identity, action, options)
        self.finish({"said": said})

    def _options(self, action: str) -> dict[str, Any]:
        if action not in _BODIES:
            return {}
        try:
            options = json.loads(self.request.body)
            check(_BODIES[action], options)
        except (Invalid, ValueError, RecursionError) as error:
            raise HTTPError(400, f"{action} cannot be read: {str(error)[:200]}") from None
        return dict(options)


class LogHandler(Handler):
    """The end of what a rank wrote."""

    @_route
    async def get(self, identity: str, rank: str) -> None:
        tail = self.number("tail", 1000, 100_000)
        name = await self.sky.name(identity)
        text = await cli_process.run("logs", rank, f"--tail={tail}", "--cluster", name)
        self.finish({"rank": int(rank), "text": text})


class KernelHandler(Handler):
    """What a kernel of this server has of jupyter_sky."""

    _track_activity = False

    @_route
    async def get(self, kernel: str) -> None:
        spec = self.sky.kernel_spec(kernel)
        if spec is None:
            raise HTTPError(404, "this server has no such kernel.")
        told = await asyncio.to_thread(self.sky.hearing.kernel, kernel)
        self.finish(await kernel_environment.describe(spec, told))


class OffersHandler(Handler):
    """What a new cluster can be made of."""

    @_route
    async def get(self) -> None:
        words = [f"--nodes={self.number('nodes', 1, 10_000)}"]
        for name in ("gpu", "provider"):
            if value := self.get_query_argument(name, ""):
                words.append(f"--{name}={value[:100]}")
        self.finish(json.loads(await cli_process.run("offers", "--json", *words)))


class UnknownHandler(Handler):
    """Everything else, so that a page of another version gets a sentence."""

    @_route
    async def get(self) -> None:
        raise HTTPError(404)

    post = put = patch = delete = get
