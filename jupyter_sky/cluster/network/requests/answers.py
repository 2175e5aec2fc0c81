"""The answers of many nodes to one request, awaited together, without a task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from jupyter_sky.cluster.network.requests.pending import refusal
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.frames import Message

_MISSING = "a node lacks data that it needs for this: run it again."

Node = TypeVar("Node")


class Answers(Generic[Node]):
    """The answers of many nodes to one request; for the background loop.

    Parameters
    ----------
    refused
        Called with the node and the error if one did not do what was requested.
    """

    def __init__(self, refused: Callable[[Node, SkyError], object]) -> None:
        self._refused = refused
        self._left = 0
        self._error: SkyError | None = None
        self._all: asyncio.Future[None] | None = None

    def expect(self, node: Node) -> NodeAnswer[Node]:
        """Expect the answer of one more node; return its receiver, a `pending.Answered`."""
        self._left += 1
        return NodeAnswer(self, node)

    async def wait(self) -> None:
        """Wait until all have answered, or one has refused.

        Raises
        ------
        SkyError
            The error of the first node that refused.
        """
        if self._left and self._error is None:
            self._all = asyncio.get_running_loop().create_future()
            await self._all
        if self._error is not None:
            raise self._error

    def note(self, node: Node, error: SkyError | None) -> None:
        """Count the answer of a node, and keep the first error."""
        if error is not None:
            self._refused(node, error)
        self._left -= 1
        self._error = self._error or error
        if self._all and not self._all.done() and (error or not self._left):
            self._all.set_result(None)


class NodeAnswer(Generic[Node]):
    """Receives the answer of one node, as a future would."""

    __slots__ = ("_is_done", "_node", "_of")

    def __init__(self, of: Answers[Node], node: Node) -> None:
        self._of = of
        self._node = node
        self._is_done = False

    def done(self) -> bool:
        """Return whether the answer has come."""
        return self._is_done

    def set_result(self, result: Message, /) -> None:
        """Take the answer."""
        if "missing" in result:
            self.set_exception(SkyError(_MISSING))
            return
        if "error" in result:
            self.set_exception(refusal(result))
            return
        self._is_done = True
        self._of.note(self._node, None)

    def set_exception(self, exception: SkyError, /) -> None:
        """Take the reason why the node has not done it."""
        self._is_done = True
        self._of.note(self._node, exception)
