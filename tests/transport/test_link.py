"""Links: frames over a socket, both ways, without a copy in between and without end."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import tracemalloc

import pytest

from jupyter_sky.transport import link
from jupyter_sky.transport.frames import Message, encode
from jupyter_sky.transport.link import HIGH_WATER, Link


def test_large_payloads_arrive_whole_and_small_messages_keep_their_order() -> None:
    async def scenario() -> None:
        seen: list[tuple[object, int]] = []
        closed = asyncio.Event()
        a, b = socket.socketpair()
        payload = bytes(range(256)) * 200_000
        received = {}

        def on_message(message, data) -> None:
            seen.append((message["n"], len(data)))
            if len(data):
                received[message["n"]] = bytes(data)
            if message["n"] == 99:
                closed.set()

        sender = Link(a, lambda message, data: None, lambda: None)
        receiver = Link(b, on_message, lambda: None)
        for n in range(100):
            sender.send({"n": n}, payload if n == 50 else b"")
            await sender.drain()
        await closed.wait()
        assert [n for n, _ in seen] == list(range(100))
        assert received[50] == payload
        sender.close()
        receiver.close()

    asyncio.run(scenario())


def test_a_sender_waits_for_a_slow_receiver() -> None:
    async def scenario() -> None:
        a, b = socket.socketpair()
        link = Link(a, lambda message, data: None, lambda: None)
        link.send({}, bytes(4 * HIGH_WATER))
        assert link.unsent_bytes > HIGH_WATER
        waiting = asyncio.create_task(link.drain())
        await asyncio.sleep(0)
        assert not waiting.done()
        b.setblocking(False)
        loop = asyncio.get_running_loop()
        left = 4 * HIGH_WATER
        while left > 0:
            left -= len(await loop.sock_recv(b, 1 << 20))
        await waiting
        link.close()
        b.close()

    asyncio.run(scenario())


def test_both_sides_see_the_end_once() -> None:
    async def scenario() -> None:
        ends: list[str] = []
        done = asyncio.Event()
        a, b = socket.socketpair()

        def end(name: str) -> None:
            ends.append(name)
            if len(ends) == 2:
                done.set()

        first = Link(a, lambda message, data: None, lambda: end("a"))
        Link(b, lambda message, data: None, lambda: end("b"))
        first.close()
        first.close()
        first.send({"late": True})
        await done.wait()
        assert ends == ["a", "b"]

    asyncio.run(scenario())


def test_what_the_other_side_said_last_is_read_although_it_hears_nothing_any_more() -> None:
    """As of a node that has ended by itself while the notebook's computer slept."""

    async def scenario() -> None:
        seen: list[object] = []
        closed = asyncio.Event()
        a, b = socket.socketpair()
        b.setblocking(False)
        b.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        ours = Link(a, lambda message, data: seen.append(message["n"]), closed.set)
        for n in range(100):
            b.send(encode({"n": n, "text": "x" * 2000}))
        b.close()
        ours.send({"hello": True})  # before the loop looks what there is to read
        await closed.wait()
        assert seen == list(range(100))

    asyncio.run(scenario())


def test_what_is_read_when_a_computer_wakes_up_was_heard_before_it_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall = 1000.0
    monkeypatch.setattr(link, "HEARTBEAT", 0.01)
    monkeypatch.setattr(time, "time", lambda: wall)

    async def scenario() -> None:
        nonlocal wall
        closed = asyncio.Event()
        a, b = socket.socketpair()
        ours = Link(a, lambda message, data: None, closed.set, silence=60.0)
        wall = 2000.0
        while ours.heard < wall:
            b.send(encode({}))
            await asyncio.sleep(0.001)
        wall = 9000.0
        b.send(encode({}))
        b.close()
        await closed.wait()
        assert ours.heard == 2000.0

    asyncio.run(scenario())


def test_bytes_that_are_no_frames_end_the_link() -> None:
    async def scenario() -> None:
        ended = asyncio.Event()
        a, b = socket.socketpair()
        Link(b, lambda message, data: None, ended.set)
        a.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 10)
        await ended.wait()
        a.close()

    asyncio.run(scenario())


def test_a_closed_link_holds_no_memory_until_cycles_are_collected() -> None:
    class Owner:
        def __init__(self, sock: socket.socket) -> None:
            self.link = Link(sock, lambda message, data: None, self.on_close)

        def on_close(self) -> None:
            pass

    async def scenario() -> None:
        for _ in range(400):
            a, b = socket.socketpair()
            Owner(a).link.close()
            b.close()

    gc.disable()
    tracemalloc.start()
    try:
        asyncio.run(scenario())
        # Of 100 MB, and beside what other threads take meanwhile.
        assert tracemalloc.get_traced_memory()[0] < 20_000_000
    finally:
        tracemalloc.stop()
        gc.enable()


def test_a_heartbeat_can_say_something() -> None:
    async def scenario() -> None:
        a, b = socket.socketpair()
        received = asyncio.get_running_loop().create_future()
        said: Message = {"n": 1}
        sender = Link(
            a, lambda message, data: None, lambda: None, silence=60.0, heartbeat=lambda: said
        )
        receiver = Link(b, lambda message, data: received.set_result(message), lambda: None)
        assert await received == {"n": 1}
        sender.close()
        receiver.close()

    asyncio.run(scenario())
