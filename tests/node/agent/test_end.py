"""The end of a node."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest

from jupyter_sky.node.agent.server import Agent
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from tests.waiting import PATIENCE


def test_a_node_ends_though_a_part_of_it_cannot(
    tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    (tmp_path / "blobs").mkdir()
    workplace.mkdir(exist_ok=True)
    spec = AgentSpec(
        cluster="c",
        id="0a",
        socket=str(workplace / "ending.sock"),
        blobs=str(tmp_path / "blobs"),
        ranks=(),
        grace=600.0,
        cwd=str(tmp_path),
    )

    def fails() -> None:
        raise PermissionError("somebody else's")

    async def serve(fork_server: socket.socket, pid: int) -> None:
        agent = Agent(folder, spec, fork_server, pid)
        monkeypatch.setattr(agent.store, "remove", fails)
        async with asyncio.timeout(PATIENCE):
            await agent.serve("", lambda port: agent._leave())

    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["true"]) as forker:
        asyncio.run(serve(ours, forker.pid))
    assert not folder.exists()
