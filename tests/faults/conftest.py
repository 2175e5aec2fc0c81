"""Clusters to break, and clients of an agent that behave badly."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

import jupyter_sky
from jupyter_sky.transport.frames import Decoder, encode
from tests.cluster.conftest import Cells, new
from tests.faults.parts import folder_of
from tests.waiting import PATIENCE

__all__ = ["new"]


class RawClient:
    """A client of an agent that reads only when it is told to."""

    def __init__(self, cells: Cells, since: int | None = None, visits: bool = False) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(folder_of(cells) / "agent.sock"))
        self._decoder = Decoder()
        self._received: list[dict[str, Any]] = []
        self.send(
            op="hello",
            since=since,
            token=f"raw {id(self)}",
            blobs=[],
            visits=visits,
            version=jupyter_sky.__version__,
        )

    def send(self, **message: Any) -> None:
        self.sock.sendall(encode(message))

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yield what comes, until the agent hangs up."""
        while count := self.sock.recv_into(self._decoder.buffer()):
            for message, _ in self._decoder.received(count):
                if message:
                    yield message

    def give_sign(self) -> None:
        """Be there still: an agent ends the link to who is silent for half a minute."""
        self.sock.sendall(encode({}))

    def welcome(self) -> dict[str, Any]:
        """Return the agent's welcome."""
        return next(each for each in self.receive() if "welcome" in each)


@pytest.fixture
def raw() -> Iterator[type[RawClient]]:
    """Makes raw clients, and closes them."""
    made: list[RawClient] = []

    class Client(RawClient):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append(self)
            super().__init__(*args, **kwargs)

    yield Client
    for client in made:
        client.sock.close()
