"""Forwards the output of ranks to the clients: as much as a notebook can take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from jupyter_sky.node.supervisor.output.rate_limiter import OutputPiece, RateLimiter
from jupyter_sky.node.supervisor.output.shown_output import ShownOutput, Source
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.events import Output


class Publish(Protocol):
    """Publishes an event; gets offset and size of its data in the rank's log, if it is there."""

    def __call__(
        self, message: Message, logged: tuple[int, int] | None, is_urgent: bool = True
    ) -> None:
        """Publish it at once, or together with events of the next moment."""


class OutputForwarder:
    """Publishes the output and displays of a node's ranks.

    Parameters
    ----------
    publish
        Publishes the events.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def forward(
        self, process: RankProcess, stream: str, data: bytes, offset: int | None, call: int = 0
    ) -> None:
        """Publish output of a rank, as far as the rate allows.

        Parameters
        ----------
        process
            The rank.
        stream
            ``"stdout"``, ``"stderr"``, or ``"log"``, which is not shown.
        data
            The output.
        offset
            Its offset in the rank's log; ``None`` if the log does not have it.
        call
            Which of several concurrent calls printed it; 0 if that is not known.
        """
        output = process.latest.output if process.run else None
        if output is None or (limiter := output.limiter(stream, call)) is None:
            return
        source, was_holding = (stream, call), limiter.is_holding
        self._show(process, source, limiter.feed(data, offset))
        if limiter.is_holding and not was_holding:
            loop = asyncio.get_running_loop()
            loop.call_later(limiter.delay, self._release, process, output, source, limiter)
        output.forget_if_empty(source)

    def forward_display(self, process: RankProcess, message: Message) -> None:
        """Publish a display of a rank, as far as the rate allows.

        The text of displays that are not shown at once goes to the rank's log.
        """
        output = process.latest.output if process.run else None
        if output is None:
            _log_text(process, message)
            return
        if message["kind"] == "clear":
            self._show_held(process, output)
        limiter = output.displays
        was_holding = limiter.is_holding
        self._publish_all(limiter.feed(message))
        if limiter.is_holding:
            _log_text(process, message)
            if not was_holding:
                loop = asyncio.get_running_loop()
                loop.call_later(limiter.delay, lambda: self._publish_all(limiter.release()))

    def flush(self, process: RankProcess) -> None:
        """Publish held output of a run that is over; what comes later is not shown."""
        if output := process.latest.output:
            self._show_held(process, output)
            self._publish_all(output.displays.release())
            output.printed.clear()

    def _show_held(self, process: RankProcess, output: ShownOutput) -> None:
        for source, limiter in output.printed.items():
            self._show(process, source, limiter.release())

    def _publish_all(self, displays: Sequence[Message]) -> None:
        for message in displays:
            self._publish(message, None)

    def _release(
        self, process: RankProcess, output: ShownOutput, source: Source, limiter: RateLimiter
    ) -> None:
        if output.printed.get(source) is limiter:
            self._show(process, source, limiter.release())
            output.forget_if_empty(source)

    def _show(self, process: RankProcess, source: Source, piece: OutputPiece | None) -> None:
        if piece:
            stream, call = source
            skipped = (piece.skipped_lines, piece.skipped_bytes)
            event = Output(process.rank, process.run, stream, piece.data, *skipped, call)
            logged = None if piece.offset is None else (piece.offset, len(piece.data))
            self._publish(event.message(), logged)


def _log_text(process: RankProcess, message: Message) -> None:
    if text := message["data"].get("text/plain"):
        process.log.append(f"{text}\n".encode(errors="replace"))
