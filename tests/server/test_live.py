"""The live output of a rank: each line once, as it comes, until the page or the cluster is gone."""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.server import schema
from jupyter_sky.server.cli_process import StreamingCommand
from tests.server.jupyter import Kernel, Server, serve
from tests.waiting import until

Open = Callable[[str], Kernel]

LIMIT = 60.0

FEW = 4
"""Logs that can be followed at once here: to fill all places costs a process for each."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with few places; Jupyter runs its configuration as Python."""
    config = f"from jupyter_sky.server import log_stream\nlog_stream._LARGEST_COUNT = {FEW}\n"
    with serve(tmp_path_factory.mktemp("server"), config=config) as made:
        yield made


async def follow(
    server: Server, entry: dict[str, Any], ranks: object, tail: str = ""
) -> WebSocketClientConnection:
    """Open the live logs of ranks."""
    path = f"jupyter-sky/api/clusters/{entry['id']}/live/{ranks}?tail={tail}"
    url = f"{server.address.replace('http', 'ws', 1)}{path}"
    return await websocket_connect(
        HTTPRequest(url, headers={"Authorization": f"token {server.token}"})
    )


async def next_chunk(connection: WebSocketClientConnection) -> dict[str, Any]:
    """The next part of the log."""
    message = await connection.read_message()
    assert message is not None, "it was closed"
    schema.check("LogChunk", found := json.loads(message))
    return dict(found)


async def read(connection: WebSocketClientConnection, end: str) -> str:
    """What comes until it ends in a text."""
    text = ""
    while not text.endswith(end):
        text += text_of(await next_chunk(connection))
    return text


def text_of(chunk: dict[str, Any]) -> str:
    return "".join(entry["text"] for entry in chunk["entries"])


def followers(cluster: str) -> list[psutil.Process]:
    """The processes that follow logs of a cluster."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[-2:] == ["--cluster", cluster]
    ]


def test_lines_come_while_the_cell_is_busy(server: Server, opened: Open) -> None:
    kernel = opened("live.ipynb")
    kernel.run("%%sky --nodes 2 --cluster live\nprint('before')")
    cell = kernel.start(
        "%%sky --stdout none\nimport sys, time\nfor at in range(50):\n"
        "    print(at, 'é', flush=True)\n    time.sleep(0.02)\ntime.sleep(600)"
    )
    entry = server.until("live", lambda entry: entry["state"] == "running")

    async def watch() -> None:
        connection = await follow(server, entry, 1)
        text = await read(connection, "49 é\n")
        assert text == "before\n" + "".join(f"{at} é\n" for at in range(50))
        stopped = asyncio.create_task(asyncio.to_thread(server.act, entry, "down"))
        while (last := await next_chunk(connection))["end"] is None:
            pass
        assert last["end"]
        assert await connection.read_message() is None
        await stopped

    asyncio.run(watch())
    kernel.finish(cell)
    until(lambda: not followers("live"))


def test_nothing_goes_on_when_the_page_is_gone(server: Server, alone: Cluster) -> None:
    alone.run(Task((0, 1), code="print('here')")).follow()
    entry = server.clusters()[alone.name]

    async def look_in() -> None:
        connection = await follow(server, entry, 0)
        await read(connection, "here\n")
        assert len(followers(alone.name)) == 1
        connection.close()

    asyncio.run(look_in())
    until(lambda: not followers(alone.name))


def test_a_run_is_named_once_however_long_nothing_comes_after_it(
    server: Server, alone: Cluster
) -> None:
    alone.run(Task((0, 1), code="print('early')", title="early")).follow()
    entry = server.clusters()[alone.name]

    async def look_in() -> list[str]:
        connection = await follow(server, entry, 0)
        entries = (await next_chunk(connection))["entries"]
        code = "import time; print('on'); time.sleep(1); print('late')"
        await asyncio.to_thread(alone.run(Task((0, 1), code=code, title="late")).follow)
        while not entries[-1]["text"].endswith("late\n"):
            entries += (await next_chunk(connection))["entries"]
        connection.close()
        return [each["title"] for each in entries if each["run"] is not None]

    assert asyncio.run(look_in()) == ["early", "late"]


@pytest.mark.parametrize("ranks", ["0-1", "0,1", "0%2C1"])  # the last is what browsers send
def test_all_ranks_are_merged_with_the_runs_that_they_are_of(
    server: Server, alone: Cluster, ranks: str
) -> None:
    alone.run(Task((0, 1), code="print('merged', flush=True)", title="a title")).follow()
    entry = server.clusters()[alone.name]

    async def look_in() -> list[dict[str, Any]]:
        connection = await follow(server, entry, ranks, "1")
        entries: list[dict[str, Any]] = []
        while len(entries) < 4:
            entries += (await next_chunk(connection))["entries"]
        connection.close()
        return entries

    entries = asyncio.run(look_in())
    assert [each["time"] for each in entries] == sorted(each["time"] for each in entries)
    for rank in (0, 1):
        began, printed = (each for each in entries if each["rank"] == rank)
        assert began["title"] == "a title"
        assert began["run"]
        assert (printed["text"], printed["stream"], printed["run"]) == ("merged\n", "stdout", None)


def test_a_log_can_be_saved_as_a_file(server: Server, alone: Cluster) -> None:
    alone.run(Task((0, 1), code="print('x' * 3_000_000)")).follow()
    entry = server.clusters()[alone.name]
    answer = server.sky(f"clusters/{entry['id']}/logs/1/file")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{alone.name}-1.log"'
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.body.endswith(b"x" * 3_000_000 + b"\n")
    assert server.sky(f"clusters/{entry['id']}/logs/12/file").status == 400


def test_a_rank_that_is_not_there_is_named(server: Server, alone: Cluster) -> None:
    entry = server.clusters()[alone.name]

    async def look_in() -> dict[str, Any]:
        return await next_chunk(await follow(server, entry, 12))

    end = f"logs: there is no rank 12, {alone.name} has ranks 0-1."
    assert asyncio.run(look_in()) == {"entries": [], "end": end}


def test_the_log_of_a_cluster_that_is_gone_ends_with_a_sentence(server: Server) -> None:
    async def look_in() -> dict[str, Any]:
        connection = await follow(server, {"id": "0000000a"}, 0)
        chunk = await next_chunk(connection)
        assert await connection.read_message() is None
        return chunk

    assert asyncio.run(look_in()) == {"entries": [], "end": "that cluster no longer exists."}


def test_a_tail_that_is_no_number_keeps_no_place(server: Server, alone: Cluster) -> None:
    entry = server.clusters()[alone.name]

    async def look_in() -> str:
        for _ in range(FEW + 1):  # one more than can be followed at once
            connection = await follow(server, entry, 12, "9" * 5000)
            end = (await next_chunk(connection))["end"]
            assert await connection.read_message() is None
        return str(end)

    assert "there is no rank 12" in asyncio.run(look_in())


def test_more_than_there_are_places_for_are_refused_until_one_is_closed(
    server: Server, alone: Cluster
) -> None:
    alone.run(Task((0, 1), code="print('here', flush=True)")).follow()
    entry = server.clusters()[alone.name]
    refused = {"entries": [], "end": f"{FEW} logs are open already: close one of them."}

    async def accepted() -> WebSocketClientConnection:
        while True:  # a page that was closed a moment ago keeps its place for another
            connection = await follow(server, entry, 0)
            chunk = await next_chunk(connection)
            if chunk["end"] is None:
                return connection
            assert chunk == refused
            await asyncio.sleep(0.05)

    async def look_in() -> None:
        opened = [await accepted() for _ in range(FEW)]
        assert await next_chunk(await follow(server, entry, 0)) == refused
        opened.pop().close()
        opened.append(await accepted())
        for connection in opened:
            connection.close()

    asyncio.run(look_in())


def test_what_cannot_be_started_is_over_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    ends: list[str] = []
    StreamingCommand(["logs", "0"], None, lambda data: None, ends.append).run()
    [end] = ends
    assert end.startswith("`jupyter sky logs` cannot be run: ")
    assert "/nowhere/python" in end


Pretends = Callable[[str], None]


@pytest.fixture
def pretends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pretends:
    """Runs a shell script in place of `jupyter sky`."""

    def pretend(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return pretend


def stream(on_output: Callable[[bytes], object]) -> str:
    """Run `jupyter sky logs` to its end, and return what is said then."""
    ends: queue.Queue[str] = queue.Queue()
    command = StreamingCommand(["logs", "0"], None, on_output, ends.put)
    threading.Thread(target=command.run, daemon=True).start()
    try:
        return ends.get(timeout=LIMIT)
    finally:
        command.kill()


def test_logs_that_are_killed_do_not_end_like_the_cluster(pretends: Pretends) -> None:
    pretends("echo 'jupyter sky: 3 lines are left out' >&2; kill -KILL $$")
    assert stream(lambda data: None) == "`jupyter sky logs` ended with status -9"
    pretends("exit 0")
    assert not stream(lambda data: None)


def test_logs_go_on_however_much_is_noted_beside_them(pretends: Pretends) -> None:
    pretends("yes a note | head -100000 >&2; echo a line; echo done >&2")
    text: list[bytes] = []
    assert stream(text.append) == "done"
    assert b"".join(text) == b"a line\n"


def test_logs_that_are_not_understood_end_with_a_sentence(pretends: Pretends) -> None:
    pretends("echo no JSON")
    assert stream(json.loads) == "`jupyter sky logs` did not work; the server's log says why."
