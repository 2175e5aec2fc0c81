"""The order in which runs of several notebooks wait for their turn; the head's agent keeps it.

Without it, whose run begins next would be chance, and a notebook whose runs follow each other at
once, or whose pool is given more and more calls, would keep others waiting for ever.

A notebook asks again and again as long as it waits. One that has ended, or stands still, does not,
and its place is lost: it keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import Handlers, QueueRequest
from jupyter_sky.transport.protocol.events import Queued

KEPT_FOR = 5.0
"""Seconds for which a place is kept that nobody asks for."""

_LOOK_EVERY = 1.0


class RunQueue:
    """The runs that wait for those of other notebooks.

    Parameters
    ----------
    publish
        Publishes events, as messages.

    Attributes
    ----------
    handlers
        The handlers of requests, by name.
    """

    def __init__(self, publish: Callable[[Message], object]) -> None:
        self._publish = publish
        self._asked: dict[str, float] = {}  # when, for each run, by the loop's clock
        self._watching: asyncio.Task[None] | None = None
        self.handlers: Handlers = {"queue": self._on_queue, "leave_queue": self._on_leave}

    def _on_queue(self, request: QueueRequest) -> Message:
        loop = asyncio.get_running_loop()
        self._change({**self._asked, request["run"]: loop.time()})
        if self._watching is None:
            self._watching = loop.create_task(self._watch())
        return {}

    def _on_leave(self, request: QueueRequest) -> Message:
        self._change({run: at for run, at in self._asked.items() if run != request["run"]})
        return {}

    async def _watch(self) -> None:
        """Drop the places that nobody asks for any more."""
        while self._asked:
            await asyncio.sleep(_LOOK_EVERY)
            since = asyncio.get_running_loop().time() - KEPT_FOR
            self._change({run: at for run, at in self._asked.items() if at >= since})
        self._watching = None

    def _change(self, asked: dict[str, float]) -> None:
        if [*asked] != [*self._asked]:
            self._publish(Queued([*asked]).message())
        self._asked = asked
