"""No more is in flight than the link carries in a moment, also where it has become a slow one."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from jupyter_sky.transport.flow import Flow
from jupyter_sky.transport.link import Link

MEGABYTE = 1024 * 1024
PIECE = MEGABYTE // 2


class Cable:
    """A link, with its other end: each piece is acknowledged when the test says so."""

    closed = False


class Sender:
    """Sends pieces as fast as it may, by a clock that only the test moves."""

    def __init__(self) -> None:
        self.flow = Flow()
        self.now = 1000.0
        self.cable = Cable()
        self._asked: list[int] = []
        asyncio.get_running_loop().time = lambda: self.now  # type: ignore[method-assign]

    async def send(self) -> int:
        """Send until it has to wait; return how much has left."""
        sent = 0
        while await self._may_send():
            sent += PIECE
            if self.flow.on_leaving(PIECE):
                self._ask()
        return sent

    async def _may_send(self) -> bool:
        waiting = self.flow.wait_for_room(PIECE, cast(Link, self.cable), self._ask)
        task = asyncio.ensure_future(waiting)
        for _ in range(3):
            await asyncio.sleep(0)
        return task.done() or not task.cancel()

    def _ask(self) -> None:
        if count := self.flow.take_unasked():
            self._asked.append(count)

    def acknowledge(self, seconds: float) -> None:
        """Acknowledge all that has left, each part after so long."""
        self._ask()
        while self._asked:
            self.now += seconds
            self.flow.on_arrived(self._asked.pop(0))

    async def be_fast(self) -> None:
        """Send over a fast link until it takes as much at once as any."""
        while await self.send() < 8 * MEGABYTE:
            self.acknowledge(0.01)
        self.acknowledge(0.01)


@pytest.mark.parametrize("change", ["pause", "new link"])
def test_a_link_that_was_fast_may_be_a_slow_one_by_now(change: str) -> None:
    async def check() -> None:
        sender = Sender()
        await sender.be_fast()
        if change == "pause":
            sender.now += 3600.0
        else:
            sender.cable = Cable()
        assert await sender.send() == MEGABYTE
        for _ in range(4):
            sender.acknowledge(8.0)
            assert await sender.send() <= 4 * MEGABYTE

    asyncio.run(check())


def test_a_link_that_is_used_all_the_time_gets_as_much_as_before() -> None:
    async def check() -> None:
        sender = Sender()
        await sender.be_fast()
        assert await sender.send() == 8 * MEGABYTE

    asyncio.run(check())
