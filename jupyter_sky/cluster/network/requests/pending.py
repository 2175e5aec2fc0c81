"""Requests without an answer yet, and their time limits: with a link, and without one."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from jupyter_sky.cluster.network import incoming
from jupyter_sky.errors import ClusterLost, NoConnection, RanksBusy, SkyError
from jupyter_sky.formatting import format_duration, format_time_ago, plain, shortened
from jupyter_sky.providers.base import AgentGone, MachineGone, MachineStopped
from jupyter_sky.transport.frames import Message, ProtocolError, SharedFields, encode

ANSWER_WITHIN = 30.0
"""Seconds for an answer to a request that does not wait for a rank; broken links do not count."""

LINK_WITHIN = 10.0
"""Seconds that a request waits for a link, in all, unless it is worth waiting for longer."""

START_LINK_WITHIN = 60.0
"""The same while a cluster starts: to make nodes anew takes longer."""

LOOK_LINK_WITHIN = 2.0
"""The same where the user looks at something, and can do so again."""

_AWAY = 30.0  # seconds after which an agent takes a silent notebook to be gone
_NEVER = math.inf
_LONGEST_REFUSAL = 2000  # characters
_EARLY = 0.001  # seconds by which a timer may be early
_LOOK_EVERY = 5.0  # seconds, while a request has a limit
_STOOD_STILL = 2.0  # seconds by which a timer is late where this process was suspended, or busy


class Answered(Protocol):
    """Takes the answer to a request, as a future does."""

    def done(self) -> bool:
        """Return whether the answer has come, or nobody waits for it any more."""

    def set_result(self, result: Message, /) -> object:
        """Take the answer."""

    def set_exception(self, exception: SkyError, /) -> object:
        """Take the reason why there will be none."""


@dataclass(slots=True)
class _Pending:
    """A request without an answer yet.

    Attributes
    ----------
    own, shared
        Its fields; ``shared`` are those that it has in common with requests to other nodes.
    within
        Seconds for the answer while there is a link; ``None`` for no limit.
    link_within
        Seconds that it may still wait without a link, in all; ``None`` for no limit.
    broke
        When the link broke; ``None`` while there is one.
    due
        When it is given up, by the loop's clock.
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

    @property
    def op(self) -> str:
        op: str = (self.shared.fields if self.shared else self.own)["op"]
        return op


def no_link(name: str, seconds: float, trouble: str) -> str:
    """Say that there is no link to a machine for so many seconds, why, and what to do."""
    why = f" ({trouble})" if trouble else ""
    return (
        f"there is no connection to {name} since {format_time_ago(seconds)}{why}; jupyter_sky "
        "keeps trying to connect: run this again when it has, or end the cluster with `%sky down`."
    )


def end_of_agent(gone: AgentGone, heard: float) -> tuple[str, bool]:
    """Say how an agent ended, and whether only its machine is off.

    Parameters
    ----------
    heard
        When its notebook has heard of it last: it may have been away since.
    """
    if isinstance(gone, MachineGone):
        return f"ended: {gone}", isinstance(gone, MachineStopped)
    away = time.time() - heard
    if gone.up_for is not None and gone.up_for < away:
        return f"ended: its machine was started again {format_duration(gone.up_for)} ago", False
    if away < _AWAY:
        return "ended", False
    return f"ended while this notebook was away for {format_duration(away)}", False


def refusal(answer: Message) -> SkyError:
    """Return the error of a request that was refused."""
    said = shortened(plain(answer["error"]), _LONGEST_REFUSAL)
    if answer.get("gone"):
        return ClusterLost(said)
    return (RanksBusy if answer.get("busy") else SkyError)(said)


def malformed(name: str, op: str) -> SkyError:
    """Return the error of a request whose answer is malformed."""
    return SkyError(
        f"{name} sent what cannot be read (its answer to {op!r}): somebody may have taken the node "
        "over, or its jupyter_sky is damaged: end the cluster with `%sky down`."
    )


class PendingRequests:
    """The requests of one connection without an answer yet.

    There is one timer for all of them. It is not set anew when an answer comes, since nearly all
    come long before their time is over. If it is late, this process stood still, and has not read
    the answers either: all requests get their time anew.

    Parameters
    ----------
    is_up
        Returns whether there is a link.
    trouble
        Returns, in words, that there is none, and why.
    name
        Returns what the user calls the machine.
    """

    def __init__(
        self, is_up: Callable[[], bool], trouble: Callable[[], str], name: Callable[[], str]
    ) -> None:
        self._name = name
        self._is_up = is_up
        self._trouble = trouble
        self._made = 0
        # In the order of their numbers. An OrderedDict, because a dict is slow to find its first
        # entry after many before it were removed.
        self._pending: OrderedDict[int, _Pending] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def new_number(self) -> int:
        """Return a number that no other request of the connection has."""
        self._made += 1
        return self._made

    def add(
        self,
        number: int,
        own: Message,
        answer: Answered,
        within: float | None,
        link_within: float | None,
        shared: SharedFields | None = None,
    ) -> bytes:
        """Add a request; return what to send, now or as soon as there is a link.

        Parameters
        ----------
        number
            One of `new_number`.
        own, shared
            Its fields; see `_Pending`.
        answer
            Takes the answer, or the error: `NoConnection` if there was no link for too long,
            `ClusterLost` if the agent is gone or does not answer in time.
        within, link_within
            See `Connection.request`.

        Returns
        -------
        bytes
            Nothing if it is too large, which ``answer`` says: each new link would break of it.
        """
        # The agent need not remember answers that have arrived.
        own = {**own, "id": number, "settled": next(iter(self._pending), number)}
        try:
            encoded = encode(own) if shared is None else shared.encode(own)
        except ProtocolError as error:
            answer.set_exception(SkyError(f"this cannot be sent to {self._name()}: {error}."))
            return b""
        pending = self._pending[number] = _Pending(own, shared, answer, within, link_within)
        self._limit(pending, asyncio.get_running_loop().time(), self._is_up())
        return encoded

    async def wait_for(self, number: int, answer: asyncio.Future[Message]) -> Message:
        """Return the answer to a request; it is forgotten if this is cancelled.

        Raises
        ------
        SkyError
            When the agent refuses or fails, with its sentence.
        """
        try:
            answered = await answer
        finally:
            self._pending.pop(number, None)
        if "error" in answered:
            raise refusal(answered)
        return answered

    def on_answer(self, message: Message) -> None:
        """Take an answer from the agent.

        Raises
        ------
        ProtocolError
            When it does not say which request it is to: its own answer would never come.
        """
        if not isinstance(number := message["re"], int) or not 0 < number <= self._made:
            raise ProtocolError("an answer does not say to which request it is")
        pending = self._pending.pop(number, None)
        if pending is None or pending.answer.done():
            return
        if incoming.is_answer(pending.op, message):
            pending.answer.set_result(incoming.as_told(pending.op, message))
        else:
            pending.answer.set_exception(malformed(self._name(), pending.op))

    def renew(self, numbers: Iterable[int]) -> None:
        """Give requests their time for an answer anew, since a part of one has come."""
        now = asyncio.get_running_loop().time()
        for number in numbers:
            if (pending := self._pending.get(number)) and pending.within is not None:
                pending.due = now + pending.within

    def on_link_changed(self) -> list[Message]:
        """Set all time limits anew; return the messages to send again if there is a link now."""
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
            self._set_timer(pending.due)

    def _set_timer(self, due: float) -> None:
        """Have `_look` called at this time, and before that if it is far away."""
        now = asyncio.get_running_loop().time()
        if due == _NEVER or (self._timer and self._timer.when() <= due):
            return
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(min(due, now + _LOOK_EVERY), self._look)

    def _look(self) -> None:
        """Fail the requests whose time is over, unless this process stood still."""
        assert self._timer is not None
        now = asyncio.get_running_loop().time()
        stood_still = now - self._timer.when() > _STOOD_STILL
        self._timer = None
        if stood_still:
            for pending in self._pending.values():
                pending.broke = None
                self._limit(pending, now, self._is_up())
        else:
            self._give_up(now + _EARLY)

    def _give_up(self, now: float) -> None:
        for number in [each for each, pending in self._pending.items() if pending.due <= now]:
            pending = self._pending.pop(number)
            if pending.answer.done():
                continue
            if self._is_up():
                text = f"the node's agent did not answer within {pending.within:.0f} s"
                pending.answer.set_exception(ClusterLost(text))
            else:
                pending.answer.set_exception(NoConnection(self._trouble()))
        self._set_timer(min((each.due for each in self._pending.values()), default=_NEVER))
