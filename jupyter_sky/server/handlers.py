"""The sidebar's routes, below ``{base_url}jupyter-sky/api/``, and the pages of nodes.

``schema.json`` describes the sidebar's.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import re
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ensure_async, url_path_join
from tornado.escape import json_encode, utf8
from tornado.web import HTTPError, RequestHandler, authenticated

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.server import cli_process, cluster_list, kernel_environment
from jupyter_sky.server.context import ServerContext
from jupyter_sky.server.log_stream import LogStreamHandler
from jupyter_sky.server.pages.forwarding import ForwardHandler
from jupyter_sky.server.pages.page_ways import PageWays
from jupyter_sky.server.schema import Invalid, check

RESOURCE = "jupyter_sky"
"""What an authorizer of the server is asked about."""

PAGE = "([0-9A-Za-z-]{1,64})/([0-9A-Za-z-]{1,64})/(.*)"
"""Below ``forward/``: a cluster's id, the name of one of its pages, and a path of that."""

_RANKS = r"all|\d{1,6}(?:(?:,|%2C|-)\d{1,6}){0,100}"  # browsers write a comma as %2C
_TEXT = "text/plain; charset=utf-8"
_FILE_CHUNK = 2**20
_SHORT = 1024  # bytes of an answer that is not worth compressing

# Commands that run at once. Only what pages read waits for its turn, for an hour in the worst case:
# never an action, nor what the list of clusters needs. Whole logs leave the places of others alone.
_reads = asyncio.Semaphore(6)
_downloads = asyncio.Semaphore(3)

_BODIES = {
    "interrupt": "Interrupt",
    "restart": "Restart",
    "scale": "Scale",
    "start": "Start",
    "terminal": "Terminal",
}


def add_routes(serverapp: Any) -> None:
    """Add our routes to a Jupyter server."""
    context = ServerContext(serverapp)
    base = url_path_join(serverapp.base_url, "jupyter-sky", "api")
    routes: list[tuple[str, type[RequestHandler]]] = [
        (r"clusters", ClustersHandler),
        (r"clusters/([^/]+)/(interrupt|where|restart|scale|stop|start|down)", ActionHandler),
        (r"clusters/([^/]+)/(history|variables|profile)", AskHandler),
        (r"clusters/([^/]+)/terminal", TerminalHandler),
        (r"clusters/([^/]+)/logs/(\d{1,6})", LogHandler),
        (r"clusters/([^/]+)/logs/(\d{1,6})/file", LogFileHandler),
        (r"clusters/([^/]+)/runs", RunsHandler),
        (r"clusters/([^/]+)/runs/([0-9a-f]{1,32})", RunHandler),
        (rf"clusters/([^/]+)/live/({_RANKS})", LogStreamHandler),
        (r"kernels/([^/]+)", KernelHandler),
        (r"offers", OffersHandler),
        (r".*", UnknownHandler),
    ]
    rules: list[tuple[str, type[RequestHandler], dict[str, Any]]] = [
        (url_path_join(base, path), handler, {"context": context}) for path, handler in routes
    ]
    pages = url_path_join(serverapp.base_url, "jupyter-sky", "forward", PAGE)
    rules.append((pages, ForwardHandler, {"context": context, "ways": PageWays()}))
    serverapp.web_app.add_handlers(".*$", rules)


Method = Callable[..., Awaitable[None]]


def _route(method: Method) -> Method:
    """Check login and authorization before `method`, and answer its errors with a sentence."""

    @functools.wraps(method)
    async def answering(self: Handler, *args: str) -> None:
        try:
            await method(self, *args)
        except SkyError as error:
            self.set_status(400 if isinstance(error, UsageError) else 409)
            self.finish({"message": str(error)})

    return cast(Method, authenticated(authorized(answering)))


class Handler(APIHandler):  # type: ignore[misc, unused-ignore]
    """The base of all routes but the log stream; wrap each method of one with `_route`."""

    auth_resource = RESOURCE

    def initialize(self, context: ServerContext) -> None:
        self.context = context

    def finish(self, *args: Any, **kwargs: Any) -> Any:
        """Answer, compressed if the page can read that.

        An open sidebar asks every 1.5 seconds for all clusters: 90 kB with 256 ranks, or 7 of gzip.
        """
        if args and isinstance(args[0], dict):
            args = (self._compressed(utf8(json_encode(args[0]))),)
        return super().finish(*args, **kwargs)

    def _compressed(self, body: bytes) -> bytes:
        self.set_header("Vary", "Accept-Encoding")
        readable = "gzip" in self.request.headers.get("Accept-Encoding", "")
        if len(body) < _SHORT or not readable:
            return body
        self.set_header("Content-Encoding", "gzip")
        return gzip.compress(body, compresslevel=1)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with an ErrorMessage."""
        error = kwargs.get("exc_info", (None, None))[1]
        message = getattr(error, "log_message", None)
        self.finish({"message": message or _STATUS_MESSAGES.get(status_code, _OTHER_STATUS)})

    def options(self, action: str) -> dict[str, Any]:
        """Return the content of a request's body.

        Raises
        ------
        HTTPError
            400, if it cannot be read.
        """
        if action not in _BODIES:
            return {}
        try:
            options = json.loads(self.request.body)
            check(_BODIES[action], options)
        except (Invalid, ValueError, RecursionError) as error:
            raise HTTPError(400, f"{action} cannot be read: {str(error)[:200]}") from None
        return dict(options)

    def whole_number(self, name: str, default: int, largest: int, smallest: int = 0) -> int:
        """Return a number from the query.

        Raises
        ------
        HTTPError
            400, if it is not a whole number from ``smallest`` to ``largest``.
        """
        given = self.get_query_argument(name, str(default))
        if not re.fullmatch(r"\d{1,16}", given, re.ASCII) or not smallest <= int(given) <= largest:
            raise HTTPError(400, f"{name} is a whole number from {smallest} to {largest:,}.")
        return int(given)


_NO_RUN = "the kernel that began this run has ended, so its end is not known here."
_OTHER_STATUS = "That did not work; the server's log says why."
_STATUS_MESSAGES = {
    403: "You may not do this: log in to Jupyter again, and reload the page.",
    404: "Not found.",
    405: "The request is not valid.",
}


class ClustersHandler(Handler):
    """All clusters."""

    _track_activity = False  # a polling page is not user activity: idle servers must be culled

    @_route
    async def get(self) -> None:
        self.context.events.keep_watching()
        inventory = await self.context.inventory()
        states = await self.context.poller.states(inventory.unattended)
        failures = self.context.actions.failures(inventory)
        kernels = await self.context.kernels()
        self.finish(cluster_list.answer(inventory, states, failures, kernels))


class ActionHandler(Handler):
    """Interrupts, inspects, restarts, scales, stops, starts or ends a cluster."""

    @_route
    async def get(self, identity: str, action: str) -> None:
        if action != "stop":
            raise HTTPError(405)
        inventory = await self.context.inventory_with(identity)
        self.finish({"said": await self.context.actions.foresee_stop(inventory, identity)})

    @_route
    async def post(self, identity: str, action: str) -> None:
        options = self.options(action)
        inventory = await self.context.inventory_with(identity)
        said = await self.context.actions.run(inventory, identity, action, options)
        self.finish({"said": said})


class TerminalHandler(Handler):
    """Opens a Jupyter terminal with a shell on a node."""

    @_route
    async def post(self, identity: str) -> None:
        rank = self.options("terminal")["rank"]
        may = self.authorizer.is_authorized(self, self.current_user, "write", "terminals")
        if not await ensure_async(may):
            raise HTTPError(403)
        manager = self.settings.get("terminal_manager")
        if manager is None or not self.settings.get("terminals_available"):
            raise SkyError(
                "this Jupyter server has no terminals: install `jupyter_server_terminals` and "
                "`terminado` where it runs, or allow them in its configuration."
            )
        name = await self.context.cluster_name(identity)
        words = cli_process.command(
            *("shell", str(rank), "--hold", "--cluster", name), only=identity
        )
        self.finish({"terminal": manager.create(shell_command=words)["name"]})


class AskHandler(Handler):
    """Answers a page's question about a cluster, from the kernel."""

    _track_activity = False

    @_route
    async def get(self, identity: str, about: str) -> None:
        question: dict[str, object] = {"about": about}
        if about == "history":
            question["since"] = self.whole_number("since", 0, 2**53)
        elif about == "profile":
            raise HTTPError(405)
        await self._answer(identity, question)

    @_route
    async def post(self, identity: str, about: str) -> None:
        if about != "profile":
            raise HTTPError(405)
        await self._answer(identity, {"about": about})

    async def _answer(self, identity: str, question: dict[str, object]) -> None:
        inventory = await self.context.inventory_with(identity)
        self.finish(await self.context.actions.ask(inventory, identity, question))


class LogHandler(Handler):
    """The end of a rank's log."""

    @_route
    async def get(self, identity: str, rank: str) -> None:
        tail = self.whole_number("tail", 1000, 100_000, smallest=1)
        name = await self.context.cluster_name(identity)
        words = ("logs", rank, f"--tail={tail}", "--cluster", name)
        async with _reads:
            text = await cli_process.run(*words, only=identity)
        self.finish({"rank": int(rank), "text": text})


class RunsHandler(Handler):
    """The last runs that are over."""

    _track_activity = False

    @_route
    async def get(self, identity: str) -> None:
        inventory = await self.context.inventory()
        kernel = self.get_query_argument("kernel", "")
        self.finish(await self.context.actions.runs(inventory, identity, kernel))


class RunHandler(Handler):
    """The state of a run, or how it ended."""

    _track_activity = False

    @_route
    async def get(self, identity: str, run: str) -> None:
        inventory = await self.context.inventory()
        record = await self.context.actions.record(inventory, identity, run)
        if record is None:
            raise HTTPError(404, _NO_RUN)
        self.finish(record)


class LogFileHandler(Handler):
    """A rank's whole log, as a file to save."""

    @_route
    async def get(self, identity: str, rank: str) -> None:
        name = await self.context.cluster_name(identity)
        with tempfile.TemporaryDirectory(prefix="jupyter-sky-") as folder:
            path = Path(folder) / "log"
            words = ("logs", rank, f"--save={path}", "--cluster", name)
            async with _downloads:
                await cli_process.run(*words, only=identity)
            self.set_header("Content-Type", _TEXT)
            self.set_header("X-Content-Type-Options", "nosniff")
            self.set_header("Content-Disposition", f'attachment; filename="{name}-{rank}.log"')
            with path.open("rb") as file:
                while data := await asyncio.to_thread(file.read, _FILE_CHUNK):
                    self.write(data)
                    await self.flush()
        self.finish(set_content_type=_TEXT)


class KernelHandler(Handler):
    """The jupyter_sky of a kernel of this server."""

    _track_activity = False

    @_route
    async def get(self, kernel: str) -> None:
        spec = self.context.kernel_spec(kernel)
        if spec is None:
            raise HTTPError(404, "this server has no such kernel.")
        report = await asyncio.to_thread(self.context.reports.kernel, kernel)
        self.finish(await kernel_environment.describe(spec, report))


class OffersHandler(Handler):
    """The offers for a new cluster."""

    @_route
    async def get(self) -> None:
        words = [f"--nodes={self.whole_number('nodes', 1, 10_000, smallest=1)}"]
        for name in ("gpu", "provider"):
            if value := self.get_query_argument(name, ""):
                words.append(f"--{name}={value[:100]}")
        async with _reads:
            offers = await cli_process.run("offers", "--json", *words)
        self.finish(json.loads(offers))


class UnknownHandler(Handler):
    """Everything else, so that a page of another version gets a sentence."""

    @_route
    async def get(self) -> None:
        raise HTTPError(404)

    post = put = patch = delete = get
