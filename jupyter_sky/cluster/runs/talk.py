"""Messages in the middle of a run, between a rank and the notebook or whatever follows the run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.quietly import request_quietly
from jupyter_sky.cluster.runs.task import Message
from jupyter_sky.cluster.snapshot import ProgressView
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.calls import TellFields
from jupyter_sky.transport.protocol.error_report import report
from jupyter_sky.transport.protocol.events import RankDone, RankExited, Told
from jupyter_sky.transport.tasks import BackgroundTasks

ENDED_WITHIN = 30.0
"""Seconds without an event, after a rank should have been killed, in which its end is told."""

_LOOKS = 10
"""How often a stopped run is waited for once more, as events come from its node."""

_FINISHED_WITHIN = 1.0
"""Seconds for requests to leave when this kernel leaves the cluster."""

Interrupting = Literal["", "own", "others"]
"""What is interrupted: nothing; a run; one of another notebook for which one of this waits."""


class Talk(Protocol):
    """What exchanges messages with the ranks of a run, in the background loop."""

    @property
    def progress(self) -> ProgressView | None:
        """How far the run is, if that is known."""

    def on_begun(self) -> None:
        """Handle that every node has begun with the run."""

    def on_told(self, event: Told) -> None:
        """Handle a message of a rank."""

    def on_rank_done(self, event: RankDone) -> None:
        """Handle that a rank has finished its part of the run."""

    def on_rank_exited(self, event: RankExited) -> bool:
        """Handle that the process of a rank has ended; return whether the run goes on."""


async def tell(
    connection: Connection,
    fields: TellFields,
    blobs: Mapping[str, memoryview],
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Send a message to a rank, with its large parts.

    Parameters
    ----------
    connection, fields, blobs
        The connection to its node, the message, and the large parts.
    is_wanted
        Called when these are there; returns whether the message is still to be sent.

    Raises
    ------
    SkyError
        When it did not arrive.
    """

    async def send() -> dict[str, Any]:
        # However long the link is broken: the user sees it, and can stop the run.
        request = partial(connection.request, "tell", link_within=None, **fields)
        return await request() if is_wanted() else {}

    await connection.uploads.put_before(send, blobs, "a call")


async def tell_in_order(
    connection: Connection,
    order: asyncio.Lock,
    fields: TellFields,
    blobs: Mapping[str, memoryview],
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Send a message to a rank; later ones wait if this one has large parts or names to send."""
    async with order:
        if blobs or fields["names"]:
            await tell(connection, fields, blobs, is_wanted)
            return
    await tell(connection, fields, {}, is_wanted)


class QuietRequests:
    """Requests to the nodes of a cluster whose answers nobody waits for.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._tasks = BackgroundTasks()
        self._unanswered: list[tuple[str, Connection]] = []

    def untold(self, run: str) -> list[Connection]:
        """Return the nodes that did not answer yet to the interrupt of a run; for any thread."""
        return [connection for name, connection in list(self._unanswered) if name == run]

    def interrupt(self, run: str, connections: Sequence[Connection] | None = None) -> None:
        """Have nodes interrupt a run; by default all of them."""
        told = self._controller.connections if connections is None else connections
        for connection in told:
            self._tasks.spawn(self._interrupt(connection, run))

    def send(self, op: str, connections: Sequence[Connection], **fields: Any) -> None:
        """Send a request to nodes."""
        for connection in connections:
            self._tasks.spawn(request_quietly(connection, op, **fields))

    async def finish(self) -> None:
        """Wait a moment for requests on their way, before this kernel leaves the cluster."""
        await self._tasks.finish(_FINISHED_WITHIN)

    async def _interrupt(self, connection: Connection, run: str) -> None:
        deadline, asked = self._controller.timeouts.stop, (run, connection)
        self._unanswered.append(asked)
        try:
            await request_quietly(connection, "interrupt", run=run, deadline=deadline)
        finally:
            self._unanswered.remove(asked)
        asyncio.get_running_loop().call_later(deadline, self._end_untold, connection, run)

    def _end_untold(
        self, connection: Connection, run: str, known: int = -1, looks: int = _LOOKS
    ) -> None:
        """End a stopped run where its node does not tell the end; else nothing could begin.

        Parameters
        ----------
        connection, run
            The connection to the node, and the run.
        known
            Number of the last event that had come `ENDED_WITHIN` before.
        looks
            How often to look again at most: what goes on for ever hides no end.
        """
        controller = self._controller
        busy = [each.rank for each in controller.state.ranks if each.run == run]
        ranks = connection.ranks.intersection(busy)
        if not ranks or not connection.is_up:
            return
        if (last := connection.events.last) != known and looks:
            # The end may be behind what ranks have printed, which comes after the node's answers.
            loop = asyncio.get_running_loop()
            loop.call_later(ENDED_WITHIN, self._end_untold, connection, run, last, looks - 1)
            return
        text = f"{connection.name} does not tell the end of a run that was stopped: it was ended"
        controller.notify(text)
        for rank in ranks:
            error: Any = report(SkyError, f"{text}.")
            controller.on_event(
                connection, RankDone(rank, run, "error", error, broken=True, arrived=[])
            )


class Teller:
    """Sends messages to the ranks of a run, in order; belongs to the background loop.

    Parameters
    ----------
    controller
        The controller of the cluster.
    run
        The run's id.
    """

    def __init__(self, controller: Controller, run: str) -> None:
        self._controller = controller
        self._run = run
        self._order: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def tell(
        self,
        rank: int,
        message: Message,
        on_trouble: Callable[[SkyError], object] = lambda trouble: None,
    ) -> None:
        """Send a message to a rank; call ``on_trouble`` with the error if it does not arrive."""
        self._controller.spawn(self._tell(rank, message, on_trouble))

    async def _tell(
        self, rank: int, message: Message, on_trouble: Callable[[SkyError], object]
    ) -> None:
        try:
            connection = self._controller.connection(rank)
            async with self._order[rank]:
                if message.blobs:
                    await connection.uploads.put(message.blobs)
            await tell(connection, message.fields(self._run, rank), message.blobs)
        except SkyError as trouble:
            # If the rank is lost or does not answer, that also ends the run, elsewhere.
            on_trouble(trouble)
