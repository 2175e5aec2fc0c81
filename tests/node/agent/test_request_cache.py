"""Requests of a client: each is carried out once, also if its link broke before the answer."""

from __future__ import annotations

import asyncio

from jupyter_sky.node.agent.request_cache import RequestCache
from jupyter_sky.transport.frames import Message


def test_a_request_that_is_sent_again_is_not_carried_out_again() -> None:
    carried_out: list[int] = []

    def handle(message: Message) -> Message:
        carried_out.append(message["id"])
        return {"number": message["id"]}

    cache = RequestCache(handle)
    for _ in range(2):
        assert cache.answer("token", {"op": "run", "id": 1}) == {"number": 1}
    assert carried_out == [1]
    cache.answer("another", {"op": "run", "id": 1})
    assert carried_out == [1, 1]


def test_what_has_the_same_answer_each_time_is_asked_for_again_and_not_kept() -> None:
    answers = iter("ab")
    cache = RequestCache(lambda message: {"data": next(answers)})
    for data in "ab":
        assert cache.answer("token", {"op": "read_port", "id": 1}) == {"data": data}
    assert not cache._answers


def test_one_that_still_waits_has_the_same_answer_on_the_next_link() -> None:
    async def ask() -> tuple[Message, Message]:
        ready = asyncio.Event()

        async def handle(message: Message) -> Message:
            await ready.wait()
            return {"done": message["id"]}

        cache = RequestCache(handle)
        first = cache.answer("token", {"op": "end", "id": 7})
        second = cache.answer("token", {"op": "end", "id": 7})
        assert first is second
        assert isinstance(first, asyncio.Task) and isinstance(second, asyncio.Task)
        ready.set()
        return await first, await second

    assert asyncio.run(ask()) == ({"done": 7}, {"done": 7})


def test_answers_that_have_arrived_are_forgotten() -> None:
    carried_out: list[int] = []

    def handle(message: Message) -> Message:
        carried_out.append(message["id"])
        return {}

    cache = RequestCache(handle)
    cache.answer("token", {"op": "log", "id": 1})
    cache.answer("token", {"op": "log", "id": 2, "settled": 2})
    cache.answer("token", {"op": "log", "id": 1})
    assert carried_out == [1, 2, 1]


def test_what_goes_wrong_is_an_answer() -> None:
    def handle(message: Message) -> Message:
        if message["op"] == "broken":
            raise OSError("no disk")
        return {"rank": message["rank"]}

    cache = RequestCache(handle)
    assert cache.answer("token", {"op": "broken", "id": 1}) == {
        "error": "the request 'broken' failed: no disk"
    }
    assert cache.answer("token", {"op": "log", "id": 2}) == {
        "error": "the request 'log' is incomplete: 'rank'"
    }
