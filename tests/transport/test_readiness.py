"""Many connections that are waited for as one: each is read, whatever happens to the others."""

from __future__ import annotations

import asyncio
import socket

import pytest

from jupyter_sky.transport.frames import Message, encode
from jupyter_sky.transport.link import Link
from jupyter_sky.transport.together.readiness import MANY, Readiness


class Links:
    """Links to this process, whose other ends are plain sockets."""

    def __init__(self, count: int) -> None:
        self.readiness = Readiness()
        self.received: list[tuple[int, int]] = []
        self.closed: list[int] = []
        self.links: list[Link] = []
        self.ends: list[socket.socket] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        ours, theirs = socket.socketpair()
        number = len(self.links)

        def take(message: Message, payload: memoryview) -> None:
            self.received.append((number, message["n"]))

        def note() -> None:
            self.closed.append(number)

        self.links.append(Link(ours, take, note, readiness=self.readiness))
        self.ends.append(theirs)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.received) + len(self.closed) < count:
                await asyncio.sleep(0)

    def close(self) -> None:
        for link, end in zip(self.links, self.ends, strict=True):
            link.close()
            end.close()


@pytest.mark.parametrize("count", [1, MANY - 1, MANY, 4 * MANY])
def test_all_are_read_and_each_in_order(count: int) -> None:
    async def scenario() -> None:
        links = Links(count)
        for n in range(3):
            for end in links.ends:
                end.sendall(encode({"n": n}))
        await links.until(3 * count)
        assert sorted(links.received) == [(number, n) for number in range(count) for n in range(3)]
        for number in range(count):
            assert [n for each, n in links.received if each == number] == [0, 1, 2]
        links.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [3, 2 * MANY])
def test_the_end_of_one_is_noticed_and_the_others_go_on(count: int) -> None:
    async def scenario() -> None:
        links = Links(count)
        links.ends[1].close()
        links.links[2].close()  # by this side, while it may have something to read
        await links.until(2)
        assert sorted(links.closed) == [1, 2]
        links.add()
        links.ends[0].sendall(encode({"n": 1}))
        links.ends[-1].sendall(encode({"n": 2}))
        await links.until(4)
        assert sorted(links.received) == [(0, 1), (count, 2)]
        links.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [2, 2 * MANY])
def test_all_can_be_closed_while_they_are_waited_for_and_others_come(count: int) -> None:
    async def scenario() -> None:
        links = Links(count)
        for end in links.ends:
            end.sendall(encode({"n": 0}))
        # The first has something to read, and the others have their moment.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        links.close()
        others = Links(0)
        others.readiness = links.readiness
        for _ in range(count):
            others.add()
        for end in others.ends:
            end.sendall(encode({"n": 1}))
        await others.until(count)
        assert len(others.received) == count
        others.close()

    asyncio.run(scenario())


def test_what_goes_wrong_with_one_disturbs_no_other() -> None:
    async def scenario() -> None:
        links, errors = Links(2 * MANY), list[str]()
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: errors.append(str(context["exception"]))
        )

        def fail() -> None:
            raise RuntimeError("this listener is broken")

        links.links[0]._on_close = fail
        for end in links.ends[1:]:
            end.sendall(encode({"n": 1}))
        links.ends[0].close()
        await links.until(2 * MANY - 1)
        assert len(links.received) == 2 * MANY - 1
        while not errors:
            await asyncio.sleep(0)
        assert errors == ["this listener is broken"]
        links.close()

    asyncio.run(scenario())
