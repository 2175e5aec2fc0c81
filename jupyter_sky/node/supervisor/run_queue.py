"""The order in which runs of several notebooks wait for their turn; the head's agent keeps it.

Without it, whose run begins next would be chance, and a notebook whose runs follow each other at
once, or whose pool is given more and more calls, would keep others waiting for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import Handlers, LeaveQueueRequest, QueueRequest
from jupyter_sky.transport.protocol.events import Queued

BACK_WITHIN = 5.0
"""Seconds for which a notebook whose link broke keeps its place."""


class RunQueue:
    """The runs that wait for those of other notebooks.

    Parameters
    ----------
    clients
        The clients that are connected: the run of one that has gone does not wait any more.
    publish
        Publishes events, as messages.

    Attributes
    ----------
    handlers
        The handlers of requests, by name.
    """

    def __init__(self, clients: Container[str], publish: Callable[[Message], object]) -> None:
        self._clients, self._publish = clients, publish
        self._queue: dict[str, str] = {}  # the client of each run
        self.handlers: Handlers = {"queue": self._on_queue, "leave_queue": self._on_leave}

    def on_closed(self) -> None:
        """Let the runs of a client that has left leave soon, unless it connects again."""
        if self._queue:
            asyncio.get_running_loop().call_later(BACK_WITHIN, lambda: self._change(self._queue))

    def _on_queue(self, request: QueueRequest) -> Message:
        self._change({**self._queue, request["run"]: request["client"]})
        return {}

    def _on_leave(self, request: LeaveQueueRequest) -> Message:
        self._change({run: each for run, each in self._queue.items() if run != request["run"]})
        return {}

    def _change(self, queue: dict[str, str]) -> None:
        queue = {run: client for run, client in queue.items() if client in self._clients}
        if [*queue] != [*self._queue]:
            self._publish(Queued([*queue]).message())
        self._queue = queue
