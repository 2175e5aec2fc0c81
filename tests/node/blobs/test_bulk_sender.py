"""What is sent to a client in bulk leaves no faster than the client has it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from jupyter_sky.node.blobs.bulk_sender import BulkSender
from jupyter_sky.serialization.blobs import PIECE
from jupyter_sky.transport import compression
from jupyter_sky.transport.link import Link

MEGABYTE = 1024 * 1024


@pytest.fixture(autouse=True)
def uncompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have any link be faster than compression: a busy machine makes this one look slow."""
    monkeypatch.setattr(compression, "_FASTEST", 0.0)


class Client:
    """The other end of a link, which keeps what it is sent, and acknowledges it when told to."""

    closed = False

    def __init__(self) -> None:
        self.sender = BulkSender(cast(Link, self))
        self.received = 0
        self._asked: list[int] = []

    def send(self, header: dict[str, Any], payload: Any = b"") -> None:
        self.received += memoryview(payload).nbytes
        if "ack" in header:
            self._asked.append(header["ack"])

    async def drain(self) -> None:
        pass

    def acknowledge(self) -> None:
        self.sender.on_arrived(self._asked.pop(0))

    async def settle(self) -> int:
        """Return how much has come when nothing more does."""
        for _ in range(1000):
            await asyncio.sleep(0)
        return self.received


def test_not_more_is_on_its_way_than_was_acknowledged_and_a_little() -> None:
    async def send() -> None:
        client = Client()
        data = memoryview(bytes(16 * MEGABYTE))
        sending = asyncio.ensure_future(client.sender.send_blob(1, data, 0))
        assert await client.settle() == MEGABYTE
        client.acknowledge()
        assert MEGABYTE < await client.settle() <= 9 * MEGABYTE
        assert not sending.done()
        sending.cancel()

    asyncio.run(send())


def test_a_client_that_leaves_is_waited_for_no_longer() -> None:
    async def send() -> None:
        client = Client()
        data = memoryview(bytes(16 * MEGABYTE))
        sending = asyncio.ensure_future(client.sender.send_blob(1, data, 0))
        await client.settle()
        client.closed = True
        client.sender.close()
        await sending

    asyncio.run(send())


def test_parts_of_files_that_are_asked_for_at_once_do_not_leave_at_once() -> None:
    async def send() -> None:
        client = Client()
        asked = [
            asyncio.ensure_future(client.sender.send_parts(number, [bytes(PIECE), None]))
            for number in range(16)
        ]
        assert await client.settle() == MEGABYTE
        while not all(each.done() for each in asked):
            client.acknowledge()
            await client.settle()
        assert client.received == 16 * PIECE

    asyncio.run(send())
