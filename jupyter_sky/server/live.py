"""The live output of a rank, over a WebSocket: what ``jupyter sky logs --follow`` prints."""

from __future__ import annotations

import asyncio
import codecs
from typing import TYPE_CHECKING, Any

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import websocket
from tornado.web import HTTPError

from jupyter_sky.server import terminal

if TYPE_CHECKING:
    from jupyter_sky.server.routes import Sky

_LINES = 200
_PIECE = 64 * 1024
_MOST = 16  # of one server: each is a process


class LiveHandler(WebSocketMixin, websocket.WebSocketHandler, JupyterHandler):
    """Sends pieces of a rank's log as they come, until the page or the cluster is gone."""

    auth_resource = "jupyter_sky"
    _following = 0

    def initialize(self, sky: Sky) -> None:
        self._sky = sky
        self._task: asyncio.Task[None] | None = None

    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Open it, for who may: there is no page to be sent to for a login."""
        if not self.current_user or not self.check_origin():
            raise HTTPError(403)
        if not self.authorizer.is_authorized(self, self.current_user, "read", self.auth_resource):
            raise HTTPError(403)
        self._name = await self._sky.name(str(args[0]))
        await super().get(*args, **kwargs)

    def open(self, identity: str, rank: str) -> None:
        """Begin to follow."""
        super().open()
        tail = self.get_query_argument("tail", "")
        lines = min(int(tail), 10_000) if tail.isascii() and tail.isdecimal() else _LINES
        self._task = asyncio.create_task(self._follow(rank, max(1, lines)))

    def on_message(self, message: str | bytes) -> None:
        """Nothing is asked on this way."""

    def on_close(self) -> None:
        """Follow no longer."""
        if self._task:
            self._task.cancel()

    async def _follow(self, rank: str, lines: int) -> None:
        if LiveHandler._following >= _MOST:
            await self._send("", f"{_MOST} logs are open already: close one of them.")
            return
        LiveHandler._following += 1
        try:
            await self._pass_on(
                "logs", rank, "--follow", f"--tail={lines}", "--cluster", self._name
            )
        except websocket.WebSocketClosedError:
            pass
        finally:
            LiveHandler._following -= 1
        self.close()

    async def _pass_on(self, *words: str) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async with terminal.following(*words) as process:
            assert process.stdout and process.stderr
            while data := await process.stdout.read(_PIECE):
                await self._send(decoder.decode(data), None)
            said = await process.stderr.read(_PIECE)
            await process.wait()
        end = terminal.complaint(said) or "the cluster has ended."
        await self._send(decoder.decode(b"", True), end)

    async def _send(self, text: str, end: str | None) -> None:
        await self.write_message({"text": text, "end": end})
