"""Ports of this computer that lead to nodes: what is carried over them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from jupyter_sky.cluster.network import forward
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
