"""Accepting connections where the system has no room for more of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jupyter_sky.node.network.acceptor import Acceptor


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_a_connection_waits_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        accepted: list[socket.socket] = []
        exhausted = 0

        def on_exhausted() -> None:
            nonlocal exhausted
            exhausted += 1

        listener = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listener.getsockname())
        acceptor = Acceptor(listener, accepted.append, on_exhausted, pause=0.01)
        gc.collect()  # what an earlier test has left open would make room when it is collected
        with no_descriptor_left():
            while exhausted < 5:
                await asyncio.sleep(0)
            assert not accepted
        while not accepted:
            await asyncio.sleep(0)
        acceptor.close()
        for sock in (client, *accepted):
            sock.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert [each.getMessage() for each in caplog.records] == [
        "connections have to wait: Too many open files"
    ]


def test_a_connection_that_cannot_be_served_is_closed_and_the_next_is_served() -> None:
    async def scenario() -> None:
        served: list[socket.socket] = []

        def serve(sock: socket.socket) -> None:
            if not served:
                served.append(sock)
                raise ValueError("not this one")
            served.append(sock)

        listener = socket.create_server(("127.0.0.1", 0))
        acceptor = Acceptor(listener, serve)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        while len(served) < 2:
            await asyncio.sleep(0)
        clients[0].settimeout(10)
        assert clients[0].recv(1) == b""
        acceptor.close()
        for sock in (*clients, *served):
            sock.close()

    asyncio.run(scenario())
