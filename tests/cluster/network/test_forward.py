"""Ports of this computer that lead to nodes: what is carried over them."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from jupyter_sky.cluster.network import forward
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.ports.requests import PIECE


def test_a_little_is_taken_of_what_the_other_side_does_not_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A program may end a connection of which nothing is taken for long, as while a link is broken.
    monkeypatch.setattr(forward, "TAKEN_WITHIN", 0.01)

    async def work() -> None:
        (program, here), (there, other) = socket.socketpair(), socket.socketpair()
        with program, other:
            # Since Python 3.12, a connection is closed whose writer nobody has any more.
            reader, _back = await asyncio.open_connection(sock=here, limit=PIECE)
            _, writer = await asyncio.open_connection(sock=there)
            pump = asyncio.ensure_future(forward._pump(reader, writer))
            # Much more than what buffers on the way hold.
            program.setblocking(False)
            sent = bytes(range(256)) * 60_000
            await asyncio.get_running_loop().sock_sendall(program, sent)
            program.close()
            other.setblocking(False)
            seen = bytearray()
            while part := await asyncio.get_running_loop().sock_recv(other, PIECE):
                seen += part
            assert seen == sent
            await pump

    asyncio.run(work())


def test_a_client_sees_its_connection_end_where_the_rank_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def connection() -> Connection:
        raise SkyError("cluster train has no rank 3: it has rank 0.")

    led = forward.Forward(connection, "127.0.0.1", 80)
    with socket.create_connection(("127.0.0.1", led.port)) as client:
        assert client.recv(1) == b""
    led.close()
    gc.collect()  # Python reports the error of a task when nobody has it any more
    event_loop.wait(asyncio.sleep(0))
    assert not caplog.records
