"""Connections to ports as a node keeps them: nothing is lost between two links, nor comes twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from jupyter_sky.node.ports import port_connection, ports
from jupyter_sky.node.ports.ports import Ports
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.ports.requests import PIECES_AT_ONCE

Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def ask(of: Ports, op: str, **fields: Any) -> Message:
    answer = of.handlers[op](fields)
    return answer if isinstance(answer, dict) else await cast(Awaitable[Message], answer)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data.upper())
    writer.close()


@contextlib.asynccontextmanager
async def connected(serve: Server = echo) -> AsyncIterator[tuple[Ports, int]]:
    """A connection to a server, which answers in capitals unless something else is said."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    of = Ports()
    port = server.sockets[0].getsockname()[1]
    opened = await ask(of, "open_port", addr="127.0.0.1", port=port, client="a kernel")
    try:
        yield of, opened["connection"]
    finally:
        of.end()
        server.close()


def test_what_was_lost_with_a_link_is_asked_for_again() -> None:
    async def work() -> None:
        async with connected() as (of, number):
            for word in (b"one", b"two", b"three"):
                await ask(of, "write_port", connection=number, data=word)
                piece = {b"one": 0, b"two": 1, b"three": 2}[word]
                answer = await ask(of, "read_port", connection=number, piece=piece)
                assert answer == {"data": word.upper()}
            again = [await ask(of, "read_port", connection=number, piece=n) for n in range(3)]
            assert [each["data"] for each in again] == [b"ONE", b"TWO", b"THREE"]
            # What the other side has for certain is not kept.
            later = asyncio.ensure_future(
                ask(of, "read_port", connection=number, piece=PIECES_AT_ONCE)
            )
            await asyncio.sleep(0)
            assert 0 not in of._open[number]._pieces
            later.cancel()

    asyncio.run(work())


def test_pieces_come_in_the_order_in_which_they_were_asked_for() -> None:
    async def work() -> None:
        async with connected() as (of, number):
            reads = [
                asyncio.ensure_future(ask(of, "read_port", connection=number, piece=piece))
                for piece in range(2)
            ]
            await ask(of, "write_port", connection=number, data=b"a")
            assert (await reads[0])["data"] == b"A"
            await ask(of, "write_port", connection=number, data=b"b")
            assert (await reads[1])["data"] == b"B"

    asyncio.run(work())


def test_quiet_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_connection, "_QUIET", 0.01)

    async def work() -> None:
        async with connected() as (of, number):
            quiet = await ask(of, "read_port", connection=number, piece=0)
            assert quiet == {"data": None}
            await ask(of, "write_port", connection=number, data=b"a")
            while (answer := await ask(of, "read_port", connection=number, piece=0)) == quiet:
                pass
            assert answer["data"] == b"A"

    asyncio.run(work())


def test_a_little_is_taken_of_what_nobody_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # A program may end a connection of which nothing is taken for long.
    monkeypatch.setattr(port_connection, "TAKEN_WITHIN", 0.01)
    sent = bytes(range(256)) * 40_000

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    async def work() -> None:
        async with connected(send) as (of, number):
            pieces = of._open[number]._pieces
            while len(pieces) < 3 * PIECES_AT_ONCE:
                await asyncio.sleep(0.01)
            seen = b""
            for piece in itertools.count():
                answer = await ask(of, "read_port", connection=number, piece=piece)
                if not answer["data"]:
                    break
                seen += answer["data"]
            assert seen == sent

    asyncio.run(work())


def test_who_asks_no_more_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "GONE_AFTER", 0.02)
    monkeypatch.setattr(ports, "_LOOK_EVERY", 0.01)

    async def work() -> None:
        async with connected() as (of, number):
            while number in of._open:
                await asyncio.sleep(0.01)
            answer = await ask(of, "read_port", connection=number, piece=0)
            assert "this connection was closed" in answer["error"]

    asyncio.run(work())


@pytest.mark.parametrize(("silent_for", "is_kept"), [(0.5, False), (20.0, True)])
def test_a_link_that_was_closed_tells_of_the_end_and_one_that_fell_silent_does_not(
    monkeypatch: pytest.MonkeyPatch, silent_for: float, is_kept: bool
) -> None:
    monkeypatch.setattr(ports, "RETURNS_WITHIN", 0.02)
    monkeypatch.setattr(ports, "_LOOK_EVERY", 0.01)

    async def work() -> None:
        async with connected() as (of, number):
            of.on_closed("a kernel", silent_for)
            while number in of._open and of._open[number].unread_for < 0.1:
                await asyncio.sleep(0.01)
            assert (number in of._open) is is_kept

    asyncio.run(work())


def test_a_port_that_ends_and_one_where_nothing_listens() -> None:
    async def work() -> None:
        async with connected() as (of, number):
            of._open[number]._writer.write_eof()
            assert (await ask(of, "read_port", connection=number, piece=0))["data"] == b""
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
                said = (await ask(of, "open_port", addr="127.0.0.1", port=port))["error"]
            assert said == f"nothing answers at port {port}: Connection refused"

    asyncio.run(work())
