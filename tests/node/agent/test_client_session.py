"""Clients of an agent: what one of them does, or what goes wrong with it, is its own affair."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from jupyter_sky.node.agent.client_session import ClientSession, ClientSessions
from jupyter_sky.node.agent.journal import Journal
from jupyter_sky.transport.frames import encode


class Host:
    """An agent without ranks; rank 0's log cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder, {}.__getitem__)  # type: ignore[arg-type]
        self.sessions = ClientSessions()
        self.closed: list[ClientSession] = []

    def welcome(self, session: ClientSession, missing: list[str]) -> dict[str, bool]:
        return {"welcome": True, "shared": self.sessions.hears_notebook(but=session)}

    def on_session_changed(self) -> None:
        pass

    def greet(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.sessions.add(ClientSession(ours, self))  # type: ignore[arg-type]
        theirs.sendall(encode({"op": "hello", "token": "", "blobs": [], "since": None}))
        return theirs

    def connect(self, since: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.sessions.add(ClientSession(ours, self))  # type: ignore[arg-type]
        theirs.sendall(encode({"op": "follow", "since": since}))
        theirs.settimeout(10)
        return theirs

    def on_session_closed(self, session: ClientSession) -> None:
        self.sessions.discard(session)
        self.closed.append(session)


def test_an_error_with_one_client_costs_that_one_its_connection_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        host.journal.append({"event": "output", "rank": 0, "data": b"x"}, logged=(0, 1))
        for n in range(600):  # more than are kept in memory
            host.journal.append({"event": "formed", "rank": n})
        late, early = host.connect(since=host.journal.last), host.connect(since=0)
        while not host.closed:
            await asyncio.sleep(0)
        host.journal.append({"event": "formed", "rank": 600})
        host.sessions.pump()  # raises nothing: this is called for a rank's message
        assert b"formed" in late.recv(1000)
        assert early.recv(1000) == b""
        for sock in (late, early):
            sock.close()

    asyncio.run(scenario())


def test_a_notebook_that_is_silent_is_not_taken_to_be_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        with host.greet() as notebook:
            while not host.sessions.has_notebook():
                await asyncio.sleep(0)
            assert host.sessions.hears_notebook(within=600)
            while host.sessions.hears_notebook(within=0.05):
                await asyncio.sleep(0.01)
            assert host.sessions.has_notebook()
            while not host.sessions.hears_notebook(within=0.05):
                notebook.sendall(encode({}))
                await asyncio.sleep(0)

    asyncio.run(scenario())
