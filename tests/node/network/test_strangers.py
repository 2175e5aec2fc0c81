"""Those who only connect to the port at which agents serve each other."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

import pytest

from jupyter_sky.node.network import peers as network
from jupyter_sky.node.network.peers import MOST_STRANGERS, PeerAgents, PeerStream
from jupyter_sky.providers.mtls import Credentials, issue_credentials
from jupyter_sky.transport.certificates import fingerprint
from tests.waiting import PATIENCE


async def greet(stream: PeerStream) -> None:
    await stream.receive()
    await stream.send({"op": "hello"})


def peers(folder: Path, credentials: Credentials, within: float = PATIENCE) -> PeerAgents:
    folder.mkdir()
    made = PeerAgents(folder, greet, within)
    made.set_credentials(asdict(credentials))
    return made


async def hangs_up(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def test_who_shows_no_certificate_in_time_is_sent_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        [ours] = issue_credentials(["a"])
        server = peers(tmp_path / "a", ours, within=0.1)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", await server.listen("127.0.0.1")
        )
        assert await hangs_up(reader)
        writer.close()
        server.close()

    asyncio.run(scenario())


def test_many_who_say_nothing_keep_no_peer_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "REACH_WITHIN", PATIENCE)

    async def scenario() -> None:
        ours, theirs = issue_credentials(["a", "b"])
        server, client = peers(tmp_path / "a", ours), peers(tmp_path / "b", theirs)
        port = await server.listen("127.0.0.1")
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_STRANGERS + 5)]
        shown = fingerprint(ours.certificate)
        place = {"node": 0, "addr": "127.0.0.1", "port": port, "ranks": [0], "fingerprint": shown}
        assert await client.reach([place]) == {}
        for reader, _ in idle[:5]:
            assert await hangs_up(reader)
        server.close()
        for _, writer in idle:
            writer.close()

    asyncio.run(scenario())
