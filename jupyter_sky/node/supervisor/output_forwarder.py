"""What ranks print, on its way to the clients: as much of it as a notebook can take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.node.supervisor.rate_limiter import OutputPiece, RateLimiter
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.events import Output

Publish = Callable[[Message, tuple[int, int] | None], None]
"""Takes an event, and offset and size of its data in the rank's log if the data is there."""


class OutputForwarder:
    """Publishes what the ranks of a node print.

    Parameters
    ----------
    publish
        Takes the events.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def forward(self, process: RankProcess, stream: str, data: bytes, offset: int) -> None:
        """Publish what a rank has printed, as much as the rate allows.

        Parameters
        ----------
        process
            The rank.
        stream
            ``"stdout"``, ``"stderr"``, or ``"log"``, which is not shown.
        data
            What it has printed.
        offset
            Where that stands in the rank's log.
        """
        limiter = process.limiters.get(stream)
        if not process.run or limiter is None:
            return
        was_holding = limiter.is_holding
        self._show(process, stream, limiter.feed(data, offset))
        if limiter.is_holding and not was_holding:
            loop = asyncio.get_running_loop()
            loop.call_later(limiter.delay, self._release, process, stream, limiter)

    def flush(self, process: RankProcess) -> None:
        """Publish what is held back of a run that is over."""
        for stream, limiter in process.limiters.items():
            self._show(process, stream, limiter.release())
        process.limiters = {}

    def _release(self, process: RankProcess, stream: str, limiter: RateLimiter) -> None:
        if process.limiters.get(stream) is limiter:
            self._show(process, stream, limiter.release())

    def _show(self, process: RankProcess, stream: str, piece: OutputPiece | None) -> None:
        if piece:
            skipped = (piece.skipped_lines, piece.skipped_bytes)
            event = Output(process.rank, process.run, stream, piece.data, *skipped)
            self._publish(event.message(), (piece.offset, len(piece.data)))
