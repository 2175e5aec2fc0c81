"""An installation on several nodes, some of which have no link to the notebook."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.upload import Uploads
from jupyter_sky.cluster.packages.install import install
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.spec import Image


class Node:
    """A node that answers, or will when it has a link again."""

    def __init__(self, name: str, answers: bool, trouble: str = "") -> None:
        self.name = name
        self.heard: list[tuple[str, str]] = []
        self._trouble = trouble
        self.uploads = Uploads(self.request, lambda: None)
        self._linked = asyncio.Event()
        if answers:
            self._linked.set()

    def link(self) -> None:
        self._linked.set()

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        # Without a link, a request waits in the order of all.
        waits = fields.get("link_within", 10.0) is None
        if not waits and not self._linked.is_set():
            raise SkyError("there is no connection")
        await self._linked.wait()
        self.heard.append((op, fields.get("installation", "")))
        return {"installed": [], "trouble": self._trouble, "lacks": None, "line": ""}


async def _install(*nodes: Node) -> None:
    connections = [cast(Connection, each) for each in nodes]
    await install(connections, ["greeting"], Image(), lambda text: None)


@pytest.mark.parametrize("ending", ["it is stopped", "it fails"])
def test_a_node_without_a_link_hears_later_that_it_is_over(ending: str) -> None:
    async def check() -> None:
        trouble = "no room" if ending == "it fails" else ""
        here, away = Node("here", True), Node("away", ending == "it fails", trouble)
        installing = asyncio.ensure_future(_install(here, away))
        while not here.heard:
            await asyncio.sleep(0)
        if ending == "it is stopped":
            installing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await installing
        else:
            with pytest.raises(SkyError, match="could not be installed on away, and nothing"):
                await installing
        away.link()
        while not away.heard or away.heard[-1][0] != "stop_install":
            await asyncio.sleep(0)
        [name] = {name for node in (here, away) for op, name in node.heard if op != "installing"}
        assert ("stop_install", name) in here.heard

    asyncio.run(check())


def test_what_all_nodes_have_is_kept() -> None:
    async def check() -> None:
        nodes = [Node("here", True), Node("there", True)]
        await _install(*nodes)
        while not all(each.heard[-1][0] == "keep_install" for each in nodes):
            await asyncio.sleep(0)

    asyncio.run(check())
