"""The live logs of ranks, over a WebSocket: what ``jupyter sky logs --follow`` prints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from typing import Any, cast

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import ensure_async
from tornado import websocket
from tornado.web import HTTPError

from jupyter_sky.server.cli_process import StreamingCommand
from jupyter_sky.server.cluster_list import NO_CLUSTER
from jupyter_sky.server.context import ServerContext

_LINES = 200
_LARGEST_TAIL = 10_000  # lines
_LARGEST_COUNT = 16  # most streams of a server: each is a process


class LogStreamHandler(WebSocketMixin, websocket.WebSocketHandler, JupyterHandler):  # type: ignore[misc, unused-ignore]
    """Sends the logs of ranks as they grow, until the page is closed or the cluster has ended."""

    auth_resource = "jupyter_sky"
    _running = 0

    def initialize(self, context: ServerContext) -> None:
        self._context = context
        self._command: StreamingCommand | None = None

    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Check login, origin and authorization: a WebSocket cannot be redirected to a login."""
        if not self.current_user or not self.check_origin():
            raise HTTPError(403)
        may = self.authorizer.is_authorized(self, self.current_user, "read", self.auth_resource)
        if not await ensure_async(may):
            raise HTTPError(403)
        try:
            self._name: str | None = await self._context.cluster_name(str(args[0]))
        except HTTPError as error:
            if error.status_code != 404:
                raise
            self._name = None  # a page cannot read why it is refused here, and would ask for ever
        await super().get(*args, **kwargs)

    def open(self, identity: str, ranks: str) -> None:
        """Start ``jupyter sky logs``."""
        super().open()
        if self._name is None:
            self._end(NO_CLUSTER)
            return
        if LogStreamHandler._running >= _LARGEST_COUNT:
            self._end(f"{_LARGEST_COUNT} logs are open already: close one of them.")
            return
        tail = self.get_query_argument("tail", "")
        is_number = re.fullmatch(r"\d{1,9}", tail, re.ASCII)
        lines = max(1, min(int(tail), _LARGEST_TAIL)) if is_number else _LINES
        words = ["logs", ranks, "--follow", "--json", f"--tail={lines}", "--cluster", self._name]
        self._unfinished = b""
        self._loop = asyncio.get_running_loop()
        self._command = StreamingCommand(words, identity, self._on_output, self._on_end)
        threading.Thread(target=self._command.run, name="sky-live", daemon=True).start()
        LogStreamHandler._running += 1  # until `_finish`, which every started thread calls

    def on_message(self, message: str | bytes) -> None:
        """Ignore what a page sends: there is nothing to ask for."""

    def on_close(self) -> None:
        """End the command."""
        if self._command:
            self._command.kill()

    # In the command's thread

    def _on_output(self, data: bytes) -> None:
        # Waiting for a slow page slows the command down, so that nothing piles up in the server.
        sending = asyncio.run_coroutine_threadsafe(self._send_text(data), self._loop)
        sending.result()

    def _on_end(self, error: str) -> None:
        self._loop.call_soon_threadsafe(self._finish, error)

    # In the event loop

    async def _send_text(self, data: bytes) -> None:
        if self.ws_connection:
            # If the page is closed meanwhile, `on_close` ends the command.
            with contextlib.suppress(websocket.WebSocketClosedError):
                *lines, self._unfinished = (self._unfinished + data).split(b"\n")
                await self._send([json.loads(line) for line in lines], None)

    def _finish(self, error: str) -> None:
        LogStreamHandler._running -= 1
        if self.ws_connection:
            self._end(error or "the cluster has ended.")

    def _end(self, why: str) -> None:
        self._send([], why)
        self.close()

    def _send(self, entries: list[Any], end: str | None) -> asyncio.Future[None]:
        sent = self.write_message({"entries": entries, "end": end})
        return cast("asyncio.Future[None]", sent)
