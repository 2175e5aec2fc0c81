"""Requests that have no answer yet, and how long each waits: with a link, and without one."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jupyter_sky.errors import ClusterLost, NoConnection, SkyError
from jupyter_sky.formatting import format_time_ago
from jupyter_sky.transport.frames import Message, SharedFields

ANSWER_WITHIN = 30.0
"""Seconds for an answer to a request that does not wait for a rank; broken links do not count."""

LINK_WITHIN = 10.0
"""Seconds that a request waits for a link, in all, unless it is worth waiting for longer."""

LOOK_LINK_WITHIN = 2.0
"""The same where the user looks at something, and can do so again."""

_NEVER = math.inf
_AT_ONCE = 0.001  # seconds by which a timer may be early


class Answered(Protocol):
    """Takes the answer to a request, as a future does."""

    def done(self) -> bool:
        """Return whether there is an answer, or nobody waits for it any more."""

    def set_result(self, result: Message, /) -> object:
        """Take the answer."""

    def set_exception(self, exception: SkyError, /) -> object:
        """Take that there will be none, and why."""


@dataclass(slots=True)
class _Pending:
    """A request that has no answer yet.

    Attributes
    ----------
    own, shared
        What is asked for; ``shared`` is what many are asked for at once, if it is one of those.
    within
        Seconds for the answer while there is a link; ``None`` for no limit.
    link_within
        Seconds that are left for waits without a link; ``None`` for no limit.
    broke
        When the link broke that it waits for; ``None`` while there is one.
    due
        When it is given up, as the loop counts.
    """

    own: Message
    shared: SharedFields | None
    answer: Answered
    within: float | None
    link_within: float | None
    broke: float | None = None
    due: float = _NEVER

    @property
    def message(self) -> Message:
        return {**self.shared.fields, **self.own} if self.shared else self.own


def no_link(name: str, seconds: float, trouble: str) -> str:
    """Say that there is no link to a machine for so many seconds, why, and what to do."""
    why = f" ({trouble})" if trouble else ""
    return (
        f"there is no connection to {name} since {format_time_ago(seconds)}{why}; the notebook "
        "keeps trying to connect: run this again when it has, or end the cluster with `%sky down`."
    )


class PendingRequests:
    """The requests of one connection that have no answer yet.

    There is one timer for all of them, and it stays where it is when an answer comes: most come
    long before their time is over.

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
        self._timer: asyncio.TimerHandle | None = None

    def new_number(self) -> int:
        """Return a number that no other request of the connection has."""
        return next(self._numbers)

    def add(
        self,
        number: int,
        own: Message,
        answer: Answered,
        within: float | None,
        link_within: float | None,
        shared: SharedFields | None = None,
    ) -> Message:
        """Add a request; return it as it is to be sent, now or when there is a link.

        Parameters
        ----------
        number
            One of `new_number`.
        own
            What is asked for.
        answer
            Takes the answer, or that there was no link for too long (`NoConnection`), or that the
            agent does not answer in time or is gone (`ClusterLost`).
        within, link_within
            As of `Connection.request`.
        shared
            What many are asked for at once, in which case ``own`` is only the rest.
        """
        # The agent need not remember answers that have arrived.
        own = {**own, "id": number, "settled": next(iter(self._pending), number)}
        pending = self._pending[number] = _Pending(own, shared, answer, within, link_within)
        self._limit(pending, asyncio.get_running_loop().time(), self._is_up())
        return own

    async def wait_for(self, number: int, answer: asyncio.Future[Message]) -> Message:
        """Return the answer to a request; it is forgotten if this is cancelled.

        Raises
        ------
        SkyError
            With the agent's sentence, when it cannot do it.
        """
        try:
            answered = await answer
        finally:
            self._pending.pop(number, None)
        if "error" in answered:
            raise SkyError(answered["error"])
        return answered

    def on_answer(self, message: Message) -> None:
        """Take an answer from the agent."""
        pending = self._pending.pop(message["re"], None)
        if pending and not pending.answer.done():
            pending.answer.set_result(message)

    def on_link_changed(self) -> list[Message]:
        """Set all limits anew; return what has to be sent again if there is a link now."""
        now, is_up = asyncio.get_running_loop().time(), self._is_up()
        for pending in self._pending.values():
            self._limit(pending, now, is_up)
        return [pending.message for pending in self._pending.values()]

    def fail(self, error: SkyError) -> None:
        """Fail all requests: there will be no answers."""
        failed = list(self._pending.values())
        self._pending.clear()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        for pending in failed:
            if not pending.answer.done():
                pending.answer.set_exception(error)

    def _limit(self, pending: _Pending, now: float, is_up: bool) -> None:
        if pending.broke is not None and pending.link_within is not None:
            pending.link_within -= now - pending.broke
        pending.broke = None if is_up else now
        limit = pending.within if is_up else pending.link_within
        pending.due = _NEVER if limit is None else now + max(0.0, limit)
        if self._timer is None or pending.due < self._timer.when():
            self._look_at(pending.due)

    def _look_at(self, due: float) -> None:
        """Let it be looked then what is to be given up, if not before."""
        if due == _NEVER or (self._timer and self._timer.when() <= due):
            return
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._give_up)

    def _give_up(self) -> None:
        """Give up the requests whose time is over."""
        self._timer = None
        now = asyncio.get_running_loop().time() + _AT_ONCE
        for number in [each for each, pending in self._pending.items() if pending.due <= now]:
            pending = self._pending.pop(number)
            if pending.answer.done():
                continue
            if self._is_up():
                text = f"the node's agent did not answer within {pending.within:.0f} s"
                pending.answer.set_exception(ClusterLost(text))
            else:
                pending.answer.set_exception(NoConnection(self._trouble()))
        self._look_at(min((each.due for each in self._pending.values()), default=_NEVER))
