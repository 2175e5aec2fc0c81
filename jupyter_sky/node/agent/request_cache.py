"""Remembers the requests of each client, so that none is carried out twice."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from jupyter_sky.transport.frames import Message

_MOST_CLIENTS = 64
_REPEATABLE = frozenset({"read_port"})
"""Requests with the same answer each time, which is kept elsewhere, and much of it."""

_INCOMPLETE = (KeyError, TypeError, ValueError)

Handler = Callable[[Message], Message | Awaitable[Message]]
"""Carries out a request, and returns the answer or an awaitable of it."""

Answer = Message | asyncio.Task[Message]
"""An answer, or a task with it: most answers are there at once, and cost no task."""


class RequestCache:
    """The requests of each client, and their answers.

    A client whose link broke sends its requests again on the next one, with the same numbers; those
    that were begun are not begun again.

    Parameters
    ----------
    handle
        Carries out a request.
    """

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._answers: dict[str, OrderedDict[int, Answer]] = {}

    def answer(self, token: str, message: Message) -> Answer:
        """Return the answer to a request, or a task for it; carry the request out if it is new.

        Parameters
        ----------
        token
            Identifies the client.
        message
            The request, with its number ``id``; answers below ``settled`` are forgotten.
        """
        if message.get("op") in _REPEATABLE:
            return self._carry_out(message)
        answers = self._answers.pop(token, OrderedDict())
        self._answers[token] = answers
        while len(self._answers) > _MOST_CLIENTS:
            del self._answers[next(iter(self._answers))]
        # Ordered by number, since clients send them in that order, even when they repeat them.
        while answers and next(iter(answers)) < message.get("settled", 0):
            answers.popitem(last=False)
        number = message["id"]
        if number not in answers:
            answers[number] = self._carry_out(message)
        return answers[number]

    def _carry_out(self, message: Message) -> Answer:
        try:
            answer = self._handle(message)
        except Exception as error:
            return _failure(message, error)
        if isinstance(answer, dict):
            return answer
        return asyncio.get_running_loop().create_task(_wait(message, answer))


async def _wait(message: Message, answer: Awaitable[Message]) -> Message:
    try:
        return await answer
    except Exception as error:
        return _failure(message, error)


def _failure(message: Message, error: Exception) -> Message:
    """Return an answer with the error: the client waits for an answer in any case."""
    trouble = "is incomplete" if isinstance(error, _INCOMPLETE) else "failed"
    return {"error": f"the request {message.get('op')!r} {trouble}: {error}"}
