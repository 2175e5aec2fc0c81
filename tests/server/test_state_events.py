"""Pages hear of another state at once, and do not have to ask until there is one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_sky.cluster.inventory import kernel_files
from jupyter_sky.server.state_events import EVENT, StateEvents
from tests.notebook.panel import samples
from tests.server.jupyter import Kernel, Server
from tests.waiting import PATIENCE

Open = Callable[[str], Kernel]

# A kernel writes its file so rarely here that no test would see anything that waits for it.
RARELY = """\
%unload_ext jupyter_sky
from jupyter_sky.notebook.sidebar import state_publisher
state_publisher.INTERVAL = 3600
%load_ext jupyter_sky
%config Sky.plugin = 'none'"""
FAILING = """\
%%sky
import time
time.sleep(1)
if sky.instance_info().rank == 1:
    raise ValueError("of rank 1")
time.sleep(2)"""


@asynccontextmanager
async def events(server: Server) -> AsyncIterator[Callable[[], Any]]:
    """Listen to the server's events as JupyterLab does; give what waits for one of ours."""
    url = f"{server.address.replace('http', 'ws', 1)}api/events/subscribe"
    request = HTTPRequest(url, headers={"Authorization": f"token {server.token}"})
    connection = await websocket_connect(request)

    async def heard() -> None:
        while json.loads(await connection.read_message() or "")["schema_id"] != EVENT:
            pass

    try:
        yield heard
    finally:
        connection.close()


def test_a_page_hears_that_a_rank_fails_and_that_the_run_ends(server: Server, opened: Open) -> None:
    kernel = opened("hears.ipynb")
    kernel.run(RARELY)
    kernel.run("%%sky --nodes 2 --cluster hears\nimport jupyter_sky as sky")
    server.until("hears", lambda entry: entry["state"] == "ready")

    async def states() -> list[object]:
        """What a page sees that asks only when it hears something."""
        seen: list[object] = []
        async with events(server) as heard:
            await asyncio.to_thread(server.clusters)  # since now it is told of changes
            cell = kernel.start(FAILING)
            while not seen or seen[-1][0] != "error":
                await heard()
                snapshot = (await asyncio.to_thread(server.clusters))["hears"]["snapshot"]
                state = [rank["outcome"] for rank in snapshot["ranks"]]
                seen.append((snapshot["run"]["state"], state))
            await asyncio.to_thread(kernel.finish, cell)
        return seen

    seen = asyncio.run(states())
    assert ("running", [None, "error"]) in seen
    assert seen[-1] == ("error", ["ok", "error"])
    kernel.run("%sky down hears")


def test_a_page_hears_of_a_change_on_a_disk_that_writes_whole_seconds(
    server: Server, told: Callable[..., Path]
) -> None:
    path = told(samples.changed(samples.snapshot(), cluster={"note": "before"}))
    os.utime(path, (1.0, 1.0))

    def note() -> object:
        return server.clusters()["shown"]["snapshot"]["cluster"]["note"]

    async def change() -> None:
        async with events(server) as heard:
            await asyncio.to_thread(note)  # since now it is told of changes
            new = path.with_suffix(".new")
            new.write_text(path.read_text().replace('"before"', '"behind"'))
            os.utime(new, (1.0, 1.0))
            new.replace(path)
            await asyncio.wait_for(heard(), PATIENCE)

    assert note() == "before"
    asyncio.run(change())
    assert note() == "behind"


def test_a_registry_that_is_refused_keeps_no_page_from_news_of_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "of others").touch()
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(home))
    runtime = tmp_path / "runtime"
    folder = kernel_files.folder(runtime)
    folder.mkdir(parents=True)

    async def told() -> None:
        heard = asyncio.Event()

        class Logger:
            def register_event_schema(self, schema: object) -> None:
                pass

            def emit(self, **what: object) -> None:
                heard.set()

        events = StateEvents(runtime, Logger())
        events.keep_watching()
        async with asyncio.timeout(PATIENCE):
            while not heard.is_set():  # the first may be there before it looks for the first time
                (folder / f"{len(list(folder.iterdir()))}.json").write_text("{}")
                await asyncio.sleep(0.05)

    asyncio.run(told())
