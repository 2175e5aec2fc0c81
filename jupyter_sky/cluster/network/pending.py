"""Requests that have no answer yet, and how long each waits: with a link, and without one."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jupyter_sky.errors import ClusterLost, NoConnection, SkyError
from jupyter_sky.transport.frames import Message


@dataclass
class _Pending:
    """A request that has no answer yet.

    Attributes
    ----------
    within
        Seconds for the answer while there is a link; ``None`` for no limit.
    link_within
        Seconds that are left for waits without a link; ``None`` for no limit.
    broke
        When the link broke that it waits for; ``None`` while there is one.
    timer
        Gives it up.
    """

    message: Message
    answer: asyncio.Future[Message]
    within: float | None
    link_within: float | None
    broke: float | None = None
    timer: asyncio.TimerHandle | None = None


class PendingRequests:
    """The requests of one connection that have no answer yet.

    Parameters
    ----------
    is_up
        Returns whether there is a link.
    trouble
        Returns, in words, that there is none, and why.
    """

    def __init__(self, is_up: Callable[[], bool], trouble: Callable[[], str]) -> None:
        self._is_up = is_up
        self._trouble = trouble
        self._numbers = itertools.count(1)
        # In the order of their numbers, and not a dict: from that, the first is slow to find where
        # many were removed before it.
        self._pending: OrderedDict[int, _Pending] = OrderedDict()

    def new_number(self) -> int:
        """Return a number that no other request of the connection has."""
        return next(self._numbers)

    def add(
        self, number: int, message: Message, within: float | None, link_within: float | None
    ) -> Message:
        """Add a request; return it as it is to be sent, now or when there is a link.

        Parameters
        ----------
        number
            One of `new_number`.
        message
            What is asked for.
        within, link_within
            As of `Connection.request`.
        """
        # The agent need not remember answers that have arrived.
        message = {**message, "id": number, "settled": next(iter(self._pending), number)}
        answer = asyncio.get_running_loop().create_future()
        pending = self._pending[number] = _Pending(message, answer, within, link_within)
        self._limit(pending)
        return message

    async def answer(self, number: int) -> Message:
        """Return the answer to a request.

        Raises
        ------
        NoConnection
            When there was no link for too long.
        ClusterLost
            When the agent does not answer in time, or is gone.
        """
        pending = self._pending[number]
        try:
            return await pending.answer
        finally:
            del self._pending[number]
            if pending.timer:
                pending.timer.cancel()

    def on_answer(self, message: Message) -> None:
        """Take an answer from the agent."""
        pending = self._pending.get(message["re"])
        if pending and not pending.answer.done():
            pending.answer.set_result(message)

    def on_link_changed(self) -> Iterator[Message]:
        """Set all limits anew; return what has to be sent again if there is a link now."""
        for pending in self._pending.values():
            self._limit(pending)
        return iter([pending.message for pending in self._pending.values()])

    def fail(self, error: SkyError) -> None:
        """Fail all requests: there will be no answers."""
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(error)

    def _limit(self, pending: _Pending) -> None:
        loop, is_up = asyncio.get_running_loop(), self._is_up()
        if pending.timer:
            pending.timer.cancel()
            pending.timer = None
        if pending.broke is not None and pending.link_within is not None:
            pending.link_within -= loop.time() - pending.broke
        pending.broke = None if is_up else loop.time()
        limit = pending.within if is_up else pending.link_within
        if limit is not None:
            pending.timer = loop.call_later(max(0.0, limit), self._give_up, pending)

    def _give_up(self, pending: _Pending) -> None:
        if pending.answer.done():
            return
        if self._is_up():
            text = f"the node's agent did not answer within {pending.within:.0f} s"
            pending.answer.set_exception(ClusterLost(text))
        else:
            pending.answer.set_exception(NoConnection(self._trouble()))
