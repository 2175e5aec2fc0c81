"""Pages of nodes in the browser: requests below ``forward/`` are passed on to the node.

They go through the kernel that is connected to the cluster: it opens a port on this computer,
protected by a key, and tells this process both on its control channel. The node learns nothing
about the user: neither cookies nor tokens leave this process, and cookies that the node sets do not
reach the browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import ensure_async
from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import (
    HTTPHeaders,
    HTTPInputError,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
    parse_response_start_line,
)
from tornado.iostream import IOStream, StreamClosedError, UnsatisfiableReadError
from tornado.web import HTTPError, authenticated

from jupyter_sky.errors import SkyError
from jupyter_sky.server.context import ServerContext
from jupyter_sky.server.pages.page_ways import PageWay, PageWays

_LARGEST_HEAD = 64 * 1024  # bytes
_LARGEST_BODY = 16 * 2**30  # bytes of a piece of an answer, which is passed on piece by piece
_PIECE = 64 * 1024
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_READING = ("GET", "HEAD")

# What the node gets to know. Others are about the user: cookies and tokens, and whatever a proxy
# before Jupyter adds once it has let the user in.
_OF_REQUESTS = {
    *("accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "pragma"),
    *("content-disposition", "content-encoding", "content-language", "content-range"),
    *("content-type", "range"),
    *("if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since"),
    *("last-event-id", "user-agent", "x-requested-with", "sec-websocket-extensions"),
    *("sec-websocket-key", "sec-websocket-protocol", "sec-websocket-version"),
}
# What is about the answer alone. With others, a page could affect the rest of Jupyter, which has
# the same origin, or a proxy before it: a web server sends files that an `X-Accel-Redirect` names.
_OF_ANSWERS = {
    *("accept-ranges", "age", "allow", "cache-control", "content-disposition", "content-encoding"),
    *("content-language", "content-length", "content-location", "content-range", "content-type"),
    *("content-security-policy", "cross-origin-embedder-policy", "cross-origin-opener-policy"),
    *("cross-origin-resource-policy", "etag", "expires", "last-modified", "link", "location"),
    *("permissions-policy", "pragma", "referrer-policy", "retry-after", "sourcemap", "vary"),
    *("x-content-type-options", "x-frame-options"),
}
_OF_WEBSOCKETS = {"sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-protocol"}
# Headers that scripts of well-known pages send, and understand.
_OF_FRAMEWORKS = (
    *("grpc-", "hx-", "marimo-", "x-gradio-", "x-grpc-", "x-mlflow-", "x-tensorboard-"),
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # no other characters end a header

_ENDED = (
    "the page does not answer: what serves it may still be starting, or may have ended, or another "
    "user of the node may have its port."
)
_AGAIN = 3  # seconds after which the browser asks again for what may only be slow to start
_MESSAGES = {
    403: "You may not see this page: log in to Jupyter again, and open it from there.",
    405: "This cannot be asked of a page.",
    501: "A page of a node has no service worker: nothing of it stays in the browser.",
}
_OTHER = "That did not work; the server's log says why."


class ForwardHandler(JupyterHandler):  # type: ignore[misc, unused-ignore]
    """Passes on requests of a node's page and the answers, including WebSockets."""

    SUPPORTED_METHODS = _METHODS
    auth_resource = "jupyter_sky"

    def initialize(self, context: ServerContext, ways: PageWays) -> None:
        self._context = context
        self._ways = ways
        self._there: IOStream | None = None
        self._has_left = False
        self._path = self._host = ""

    def check_xsrf_cookie(self) -> None:
        """Leave this to `prepare`: pages of nodes do not know Jupyter's tokens."""

    def compute_etag(self) -> None:
        """Leave this to the node."""

    async def prepare(self) -> None:
        """Refuse users who are not logged in or authorized, and requests of other pages."""
        await ensure_async(super().prepare())
        if not self._finished and not self.current_user:
            authenticated(lambda handler: None)(self)
        if self._finished:
            return
        may = self.authorizer.is_authorized(self, self.current_user, "execute", self.auth_resource)
        if not self._is_from_here() or not await ensure_async(may):
            raise HTTPError(403)
        if self._asked("Service-Worker"):
            raise HTTPError(501)

    def get_login_url(self) -> str:
        """Return where users log in, if this is what they see: parts of a page are refused."""
        if not self._is_page:
            raise HTTPError(403)
        return str(super().get_login_url())

    async def get(self, cluster: str, name: str, path: str) -> None:
        """Pass on any request."""
        query = _without_token(self.request.query)
        if self._is_page and query != self.request.query:
            # Scripts of the page can read its address. Jupyter has set a cookie by now.
            self.redirect(self.request.path + (f"?{query}" if query else ""))
            return
        # The original path: escapes in it are kept.
        self._path = self.request.path.split("/jupyter-sky/forward/", 1)[1].split("/", 2)[2]
        target = f"/{self._path}"
        if query:
            target += f"?{query}"
        try:
            way, self._there = await self._ways.open(self._context, cluster, name)
        except SkyError as error:
            raise HTTPError(503, str(error).replace("%", "%%")) from None
        self._host = way.host
        start = RequestStartLine(self.request.method or "GET", target, "HTTP/1.1")
        headers = self._headers_for(way)
        with contextlib.closing(self._there):
            if self._has_left:  # while the way was opened
                return
            if self._is_websocket:
                await self._splice(self._there, start, headers)
            else:
                await self._answer(self._there, start, headers)

    head = post = put = patch = delete = options = get

    def on_connection_close(self) -> None:
        """Cancel the request when the browser has gone."""
        super().on_connection_close()
        self._has_left = True
        if self._there is not None:
            self._there.close()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with a sentence."""
        error = kwargs.get("exc_info", (None, None))[1]
        message = getattr(error, "log_message", None)
        text = message.replace("%%", "%") if message else _MESSAGES.get(status_code, _OTHER)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        if text == _ENDED and self._is_page:
            self.set_header("Refresh", str(_AGAIN))
            text += f"\nIt is asked again every {_AGAIN} seconds."
        self.finish(f"{text}\n")

    # Access control

    def _asked(self, header: str) -> str:
        return str(self.request.headers.get(header, ""))

    @property
    def _is_page(self) -> bool:
        """Return whether the browser will show the answer, and not a part of another page."""
        return self.request.method == "GET" and "text/html" in self._asked("Accept")

    @property
    def _is_websocket(self) -> bool:
        return self._asked("Upgrade").lower() == "websocket"

    def _is_from_here(self) -> bool:
        """Return whether no other page asks, since none can send a token in a header."""
        if self.token_authenticated:
            return True
        if not self.check_origin():
            return False
        if self._asked("Sec-Fetch-Site") in ("cross-site", "same-site") and not self.allow_origin:
            # Others may link to a page, but not load parts of it.
            return self._asked("Sec-Fetch-Mode") == "navigate" and self.request.method == "GET"
        # Browsers send the origin of WebSockets, and of requests that change something.
        is_harmless = self.request.method in _READING and not self._is_websocket
        return is_harmless or bool(self._asked("Origin"))

    # Requests

    def _headers_for(self, way: PageWay) -> HTTPHeaders:
        headers = HTTPHeaders()
        for name, value in self.request.headers.get_all():
            if _is_among(_OF_REQUESTS, name):
                headers.add(name, value)
        headers["Host"] = way.host
        if self._asked("Origin"):
            headers["Origin"] = f"http://{way.host}"
        if self._is_websocket:
            headers["Connection"], headers["Upgrade"] = "Upgrade", "websocket"
        elif self.request.body or self.request.method not in _READING:
            headers["Content-Length"] = str(len(self.request.body))
        return headers

    # Answers

    async def _answer(self, there: IOStream, start: RequestStartLine, headers: HTTPHeaders) -> None:
        parameters = HTTP1ConnectionParameters(
            no_keep_alive=True, max_header_size=_LARGEST_HEAD, max_body_size=_LARGEST_BODY
        )
        connection = HTTP1Connection(there, is_client=True, params=parameters)
        answer = _Answer(self._begin, self._go_on)
        with contextlib.suppress(StreamClosedError):
            await connection.write_headers(start, headers, self.request.body)
            connection.finish()
            await connection.read_response(answer)
        if answer.is_whole:
            await self.finish()
        elif not self._headers_written:
            raise HTTPError(502, _ENDED)
        else:
            # The browser has got only a part, and must be able to notice.
            self._auto_finish = False
            self.detach().close()

    async def _begin(self, start: ResponseStartLine, headers: HTTPHeaders) -> None:
        self.set_status(start.code, start.reason)
        self.clear_header("Content-Type")
        for name, value in _kept(_OF_ANSWERS, headers):
            self.add_header(name, self._location(value) if name == "Location" else value)
        await self._send()

    async def _go_on(self, data: bytes) -> None:
        self.write(data)
        await self._send()

    async def _send(self) -> None:
        with contextlib.suppress(StreamClosedError):  # `on_connection_close` ends it
            await self.flush()  # the node waits for a slow browser

    async def _splice(self, there: IOStream, start: RequestStartLine, headers: HTTPHeaders) -> None:
        """Carry a WebSocket both ways unchanged: only its beginning is HTTP."""
        try:
            await there.write(_head(f"{start.method} {start.path} HTTP/1.1", headers))
            said = await there.read_until(b"\r\n\r\n", max_bytes=_LARGEST_HEAD)
            first, _, rest = said.decode("latin-1").partition("\n")
            code = parse_response_start_line(first.rstrip("\r")).code
            answered = HTTPHeaders.parse(rest)
        except (HTTPInputError, StreamClosedError, UnsatisfiableReadError, ValueError):
            raise HTTPError(502, _ENDED) from None
        if code != 101:
            raise HTTPError(code if 400 <= code < 600 else 502, _ENDED)
        shown = HTTPHeaders({"Connection": "Upgrade", "Upgrade": "websocket"})
        for name, value in _kept(_OF_WEBSOCKETS, answered):
            shown.add(name, value)
        self._auto_finish = False
        here = self.detach()
        with contextlib.closing(here), contextlib.suppress(StreamClosedError):
            await here.write(_head("HTTP/1.1 101 Switching Protocols", shown))
            await asyncio.gather(_pump(here, there), _pump(there, here))

    def _location(self, value: str) -> str:
        """Return the target of a redirect as an address for the browser."""
        try:
            parts = urlsplit(value)
        except ValueError:  # it is none: the browser says so
            return value
        if parts.netloc not in ("", self._host) or not parts.path.startswith("/"):
            return value
        base = str(self.request.path).removesuffix(self._path)
        return base.rstrip("/") + parts._replace(scheme="", netloc="").geturl()


class _Answer(HTTPMessageDelegate):  # type: ignore[misc, unused-ignore]
    """An answer of a node, passed on piece by piece.

    Attributes
    ----------
    is_whole
        Whether it is complete.
    """

    def __init__(
        self,
        begin: Callable[[ResponseStartLine, HTTPHeaders], Awaitable[None]],
        go_on: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._begin = begin
        self._go_on = go_on
        self.is_whole = False

    def headers_received(self, start_line: Any, headers: HTTPHeaders) -> Awaitable[None] | None:
        """Pass on status and headers, unless they only say that the answer will come."""
        return None if start_line.code < 200 else self._begin(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None]:
        """Pass on a piece."""
        return self._go_on(chunk)

    def finish(self) -> None:
        """Note that the answer is complete."""
        self.is_whole = True


def _is_among(names: Collection[str], name: str) -> bool:
    return name.lower() in names or name.lower().startswith(_OF_FRAMEWORKS)


def _kept(names: Collection[str], headers: HTTPHeaders) -> Iterator[tuple[str, str]]:
    """Yield the headers of a node that a browser gets: none of them has an end of line in it."""
    for name, value in headers.get_all():
        if _is_among(names, name) and not _CONTROL.search(value):
            yield name, value


def _head(first: str, headers: HTTPHeaders) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.get_all())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _without_token(query: str) -> str:
    """Return a query without Jupyter's token, however its name is escaped."""
    parts = query.split("&")
    return "&".join(each for each in parts if unquote_plus(each.partition("=")[0]) != "token")


async def _pump(source: IOStream, target: IOStream) -> None:
    """Carry data as fast as the other side takes it; the end of one direction ends both."""
    with contextlib.suppress(StreamClosedError):
        while True:
            await target.write(await source.read_bytes(_PIECE, partial=True))
    source.close()
    target.close()
