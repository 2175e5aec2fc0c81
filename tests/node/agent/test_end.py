"""The end of a node."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky
from jupyter_sky.node.agent.logs import Logs
from jupyter_sky.node.agent.server import Agent
from jupyter_sky.node.files import reader
from jupyter_sky.node.supervisor.output.log_file import LogFile
from jupyter_sky.node.volumes import volumes
from jupyter_sky.providers.buckets.credentials import order_of
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.providers.local import Local
from jupyter_sky.transport.frames import encode
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from jupyter_sky.transport.tasks import BackgroundTasks
from tests.waiting import PATIENCE


@pytest.fixture
def spec(tmp_path: Path, workplace: Path) -> Iterator[AgentSpec]:
    (tmp_path / "node").mkdir()
    (tmp_path / "blobs").mkdir()
    workplace.mkdir(exist_ok=True)
    place = workplace / "ending.sock"
    yield AgentSpec(
        cluster="c",
        id="0a",
        socket=str(place),
        blobs=str(tmp_path / "blobs"),
        ranks=(),
        grace=600.0,
        cwd=str(tmp_path),
    )
    place.unlink()


def test_a_node_ends_though_a_part_of_it_cannot(
    tmp_path: Path, spec: AgentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "node"

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


@pytest.mark.parametrize("asked", ["find", "written", "read"])
def test_a_node_ends_though_a_disk_does_not_answer_that_files_are_read_from(
    tmp_path: Path, spec: AgentSpec, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    begun, answers, tasks = threading.Event(), threading.Event(), BackgroundTasks()

    def hang(*_: object) -> None:
        begun.set()
        answers.wait()

    async def ask_and_leave(agent: Agent) -> None:
        _, writer = await asyncio.open_unix_connection(spec.socket)
        hello = {"op": "hello", "token": "", "blobs": [], "since": None}
        writer.write(encode({**hello, "version": jupyter_sky.__version__}))
        writer.write(encode({"op": asked, "id": 1, "patterns": ["*"], "most": 1, "parts": []}))
        await asyncio.to_thread(begun.wait, PATIENCE)
        agent._leave()
        writer.close()

    def begin(agent: Agent) -> None:
        tasks.spawn(ask_and_leave(agent))

    async def serve(fork_server: socket.socket, pid: int) -> None:
        agent = Agent(tmp_path / "node", spec, fork_server, pid)
        async with asyncio.timeout(PATIENCE):
            await agent.serve("", lambda port: begin(agent))

    monkeypatch.setattr(reader, asked, hang)
    gives_up = threading.Timer(PATIENCE, answers.set)
    gives_up.start()
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["true"]) as forker:
        asyncio.run(serve(ours, forker.pid))
    assert begun.is_set()
    assert not answers.is_set()
    gives_up.cancel()
    answers.set()


def test_what_ranks_have_written_goes_back_where_nothing_can_fork_them_any_more(
    tmp_path: Path, spec: AgentSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, bucket, data = tmp_path / "node", tmp_path / "bucket", tmp_path / "data"
    bucket.mkdir()
    # A node that is ended has no time for much more than what was written back before.
    monkeypatch.setattr(volumes, "_LAST_WITHIN", 0.0)
    order = order_of(Volume(bucket.as_uri(), str(data)), Local())

    async def serve(fork_server: socket.socket, pid: int, its_end: socket.socket) -> None:
        agent = Agent(folder, spec, fork_server, pid)

        async def lose() -> None:
            assert await agent._volumes.handlers["mount"]({"volumes": [order]})
            (data / "model").write_text("weights")
            its_end.close()

        tasks: list[asyncio.Task[None]] = []
        async with asyncio.timeout(PATIENCE):
            await agent.serve("", lambda port: tasks.append(asyncio.ensure_future(lose())))
        await tasks[0]

    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["true"]) as forker:
        asyncio.run(serve(ours, forker.pid, theirs))
    assert not folder.exists()
    assert (bucket / "model").read_text() == "weights"


def test_who_follows_logs_does_so_until_it_says_that_it_does_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = LogFile(tmp_path / "log")
        log.append(b"the end")
        ranks: Any = {0: SimpleNamespace(log=log, drain=lambda: None)}
        logs = Logs(ranks, {"notebook"})

        def ask(**fields: object) -> None:
            logs.handlers["log"](
                {"rank": 0, "tail": 0, "offset": 0, "limit": 9, "client": "notebook", **fields}
            )

        ask(follows=True)
        ask()  # as for the sidebar, which is another matter
        ending = asyncio.ensure_future(logs.end())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not ending.done()
        ask(follows=False)
        await asyncio.wait_for(ending, PATIENCE)

    asyncio.run(scenario())
