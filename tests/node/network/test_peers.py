"""Which agents let each other in: those of one cluster, for as long as they belong to it."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.node.network import peers
from jupyter_sky.node.network.peers import PeerAgents, PeerStream
from jupyter_sky.providers.mtls import Credentials, issue_credentials
from jupyter_sky.transport.certificates import fingerprint
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is refused here is so at once; nobody else is, because this process was paused."""
    monkeypatch.setattr(peers, "REACH_WITHIN", PATIENCE)


async def answer(stream: PeerStream) -> None:
    await stream.receive()
    await stream.send({"op": "hello"})


async def opened(folder: Path, credentials: Sequence[Credentials]) -> list[tuple[PeerAgents, Any]]:
    """Return agents that listen, each with what others are told of it."""
    made = []
    for number, each in enumerate(credentials):
        agent = PeerAgents(Path(tempfile.mkdtemp(dir=folder)), answer)
        agent.set_credentials(asdict(each))
        port = await agent.listen("127.0.0.1")
        shown = fingerprint(each.certificate)
        place = {"node": number, "addr": "127.0.0.1", "port": port, "fingerprint": shown}
        made.append((agent, {**place, "ranks": [number]}))
    return made


def scenario(folder: Path, play: Callable[[Path], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(play(folder), PATIENCE))


def test_those_of_one_cluster_reach_each_other(tmp_path: Path) -> None:
    async def play(folder: Path) -> None:
        (a, at_a), (b, at_b) = await opened(folder, issue_credentials(["a", "b"]))
        assert await a.reach([at_b]) == {}
        assert await b.reach([at_a]) == {}

    scenario(tmp_path, play)


def test_a_certificate_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def play(folder: Path) -> None:
        (a, at_a), _ = await opened(folder, issue_credentials(["a", "b"]))
        (c, at_c), _ = await opened(folder, issue_credentials(["a", "b"]))
        assert list(await c.reach([at_a])) == [0]
        assert list(await a.reach([at_c])) == [0]
        # Nor does it help to be signed by the right authority, or to be known by name alone.
        c.trust(a.authority, [at_a["fingerprint"]])
        assert list(await c.reach([at_a])) == [0]
        a.trust(a.authority, [at_c["fingerprint"]])
        assert list(await c.reach([at_a])) == [0]

    scenario(tmp_path, play)


def test_who_left_is_not_let_in(tmp_path: Path) -> None:
    async def play(folder: Path) -> None:
        (a, at_a), (b, at_b), (c, at_c) = await opened(folder, issue_credentials(["a", "b", "c"]))
        assert await c.reach([at_a, at_b]) == {}
        a.set_others([at_b])
        assert list(await c.reach([at_a, at_b])) == [0]
        assert await b.reach([at_a]) == {}
        # One that joins is let in beside those that are there.
        a.trust(a.authority, [at_c["fingerprint"]])
        assert await c.reach([at_a]) == {}
        assert await b.reach([at_a]) == {}

    scenario(tmp_path, play)


def test_an_agent_is_not_taken_for_another(tmp_path: Path) -> None:
    async def play(folder: Path) -> None:
        (a, _), (_, at_b), (_, at_c) = await opened(folder, issue_credentials(["a", "b", "c"]))
        moved = {**at_b, "port": at_c["port"]}
        assert await a.reach([moved]) == {1: "another agent answers there"}

    scenario(tmp_path, play)


def test_ranks_are_those_of_the_agent_that_speaks(tmp_path: Path) -> None:
    async def play(folder: Path) -> None:
        (a, at_a), (_, at_b), _ = await opened(folder, issue_credentials(["a", "b", "c"]))
        a.set_others([at_b, {**at_b, "node": 7, "ranks": [5, 6]}])
        assert a.ranks_of(at_b["fingerprint"]) == {1, 5, 6}
        assert a.ranks_of(at_a["fingerprint"]) == frozenset()

    scenario(tmp_path, play)


def test_one_that_says_nothing_may_be_there_unlike_one_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(folder: Path) -> None:
        (a, _), (_, at_b), (c, at_c) = await opened(folder, issue_credentials(["a", "b", "c"]))
        a.set_others([at_b, at_c])
        assert await a.ask_all({"op": "hello"}) == [{"op": "hello"}] * 2
        c.close()
        assert await a.ask_all({"op": "hello"}) == [{"op": "hello"}]
        with socket.create_server(("127.0.0.1", 0)) as suspended:
            a.set_others([{**at_c, "port": suspended.getsockname()[1]}])
            monkeypatch.setattr(peers, "REACH_WITHIN", 0.1)
            assert await a.ask_all({"op": "hello"}) == [None]

    scenario(tmp_path, play)


def test_no_clock_ends_a_certificate() -> None:
    from cryptography import x509

    [made] = issue_credentials(["a"])
    for pem in (made.certificate, made.authority):
        read = x509.load_pem_x509_certificate(pem.encode())
        assert read.not_valid_before_utc.year == 2000
        assert read.not_valid_after_utc.year == 9999
