"""Ports that the head reserves: each who asks gets their own."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.node.supervisor.reservations import Reservations


class Head:
    """A rank that answers when it is told to."""

    rank = 0

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    def send(self, command: dict[str, Any]) -> None:
        self.commands.append(command)


def test_two_notebooks_ask_at_the_same_time() -> None:
    async def ask() -> None:
        head, other = Head(), Head()
        other.rank = 1
        reservations = Reservations(cast(dict[int, RankProcess], {0: head, 1: other}))

        def answer(rank: Head, number: int, **said: Any) -> None:
            reservations.on_answer(cast(RankProcess, rank), {"reserved": number, **said})

        asked = [
            asyncio.ensure_future(reservations.reserve({"rank": 0, "addr": addr}))
            for addr in ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
        ]
        await asyncio.sleep(0)  # they send their commands
        for command, port in zip(head.commands, (1001, 1002), strict=False):
            answer(other, command["number"], port=1000)  # that is not for another rank to say
            answer(head, command["number"], port=port)
        answer(head, head.commands[2]["number"], error="there is none")
        answer(head, 0, port=1003)  # that nobody asked for
        reservations.fail("rank 0 is lost, killed")
        assert await asyncio.gather(*asked) == [
            {"port": 1001},
            {"port": 1002},
            {"error": "there is none"},
            {"error": "rank 0 is lost, killed"},
        ]

    asyncio.run(ask())
