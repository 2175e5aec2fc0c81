"""What ranks print, on its way to the clients: as much of it as a notebook can bear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.node.supervisor.rate_limiter import RateLimiter, Shown
from jupyter_sky.transport.events import Output
from jupyter_sky.transport.frames import Message

Publish = Callable[[Message, tuple[int, int] | None], None]
"""Takes an event, and where its data stands in the rank's log if it does."""


class OutputForwarder:
    """Shows what the ranks of a node print.

    Parameters
    ----------
    publish
        Takes what is shown, as it goes over the wire.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def take(self, process: RankProcess, stream: str, data: bytes, offset: int) -> None:
        """Take what a rank has printed, and where it stands in its log."""
        gate = process.gates.get(stream)
        if not process.run or gate is None:
            return
        held = gate.holds
        self._show(process, stream, gate.take(data, offset))
        if gate.holds and not held:
            loop = asyncio.get_running_loop()
            loop.call_later(gate.delay, self._release, process, stream, gate)

    def rest(self, process: RankProcess) -> None:
        """Show what is held back of a run that is over."""
        for stream, gate in process.gates.items():
            self._show(process, stream, gate.release())
        process.gates = {}

    def _release(self, process: RankProcess, stream: str, gate: RateLimiter) -> None:
        if process.gates.get(stream) is gate:
            self._show(process, stream, gate.release())

    def _show(self, process: RankProcess, stream: str, shown: Shown | None) -> None:
        if shown:
            skipped = (shown.skipped_lines, shown.skipped_bytes)
            event = Output(process.rank, process.run, stream, shown.data, *skipped)
            self._publish(event.message(), (shown.offset, len(shown.data)))
