"""The live output of a rank, over a WebSocket: what ``jupyter sky logs --follow`` prints."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
import threading
from typing import TYPE_CHECKING, Any

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import ensure_async
from tornado import websocket
from tornado.web import HTTPError

from jupyter_sky.server.cli_process import Following

if TYPE_CHECKING:
    from jupyter_sky.server.handlers import Sky

_LINES = 200
_MOST = 16  # of one server: each is a process


class LiveHandler(WebSocketMixin, websocket.WebSocketHandler, JupyterHandler):
    """Sends pieces of a rank's log as they come, until the page or the cluster is gone."""

    auth_resource = "jupyter_sky"
    _running = 0

    def initialize(self, sky: Sky) -> None:
        self._sky = sky
        self._following: Following | None = None

    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Open it, for who may: there is no page to be sent to for a login."""
        if not self.current_user or not self.check_origin():
            raise HTTPError(403)
        may = self.authorizer.is_authorized(self, self.current_user, "read", self.auth_resource)
        if not await ensure_async(may):
            raise HTTPError(403)
        self._name = await self._sky.name(str(args[0]))
        await super().get(*args, **kwargs)

    def open(self, identity: str, rank: str) -> None:
        """Begin to follow."""
        super().open()
        if LiveHandler._running >= _MOST:
            self._send("", f"{_MOST} logs are open already: close one of them.")
            self.close()
            return
        tail = self.get_query_argument("tail", "")
        lines = min(int(tail), 10_000) if re.fullmatch(r"\d{1,9}", tail, re.ASCII) else _LINES
        words = ["logs", rank, "--follow", f"--tail={max(1, lines)}", "--cluster", self._name]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._loop = asyncio.get_running_loop()
        self._following = Following(words, self._take, self._over)
        threading.Thread(target=self._following.follow, name="sky-live", daemon=True).start()
        LiveHandler._running += 1  # until `_finish`, which every thread that has started calls

    def on_message(self, message: str | bytes) -> None:
        """Nothing is asked on this way."""

    def on_close(self) -> None:
        """Follow no longer."""
        if self._following:
            self._following.end()

    # In the thread that follows

    def _take(self, data: bytes) -> None:
        # A page that is slow slows down what is followed, and nothing piles up here.
        sending = asyncio.run_coroutine_threadsafe(self._pass_on(data), self._loop)
        sending.result()

    def _over(self, trouble: str) -> None:
        self._loop.call_soon_threadsafe(self._finish, trouble)

    # In the loop

    async def _pass_on(self, data: bytes) -> None:
        if self.ws_connection:
            # A page that is closed meanwhile ends the process, in `on_close`.
            with contextlib.suppress(websocket.WebSocketClosedError):
                await self._send(self._decoder.decode(data), None)

    def _finish(self, trouble: str) -> None:
        LiveHandler._running -= 1
        if self.ws_connection:
            self._send(self._decoder.decode(b"", True), trouble or "the cluster has ended.")
            self.close()

    def _send(self, text: str, end: str | None) -> asyncio.Future[None]:
        return self.write_message({"text": text, "end": end})
