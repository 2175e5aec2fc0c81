"""Terminals of Jupyter's with a shell of a node in them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.server import schema
from tests.server.jupyter import Server, serve


def printed(server: Server, name: str, typed: str, until: str) -> str:
    """Type into a terminal; return what it prints up to a text."""

    async def talk() -> str:
        url = f"{server.address.replace('http', 'ws', 1)}terminals/websocket/{name}"
        request = HTTPRequest(url, headers={"Authorization": f"token {server.token}"})
        connection = await websocket_connect(request)
        await connection.write_message(json.dumps(["stdin", typed]))
        seen = ""
        while until not in seen:
            kind, *said = json.loads(str(await connection.read_message()))
            seen += said[0] if kind == "stdout" else ""
        connection.close()
        return seen

    return asyncio.run(talk())


def test_a_terminal_is_a_shell_of_the_node(server: Server, alone: Cluster) -> None:
    place = f"clusters/{alone.id}/terminal"
    answer = server.sky(place, {"rank": 1})
    assert answer.status == 200, answer.body
    schema.check("TerminalName", answer.json)
    name = answer.json["terminal"]
    assert name in [each["name"] for each in server.fetch("api/terminals").json]
    [row] = registry.rows()
    agent = row.machines[0]["pid"]
    text = printed(server, name, "echo of=$PPID@\r", f"of={agent}@")
    assert "Traceback" not in text
    # A rank that is not there is said in the terminal, which stays until that is read.
    name = server.sky(place, {"rank": 9}).json["terminal"]
    assert "there is no rank 9" in printed(server, name, "", "Enter closes this terminal")


def test_what_is_asked_is_checked(server: Server, alone: Cluster) -> None:
    place = f"clusters/{alone.id}/terminal"
    for body in ({}, {"rank": "0; reboot"}, {"rank": -1}, {"rank": 0, "more": 1}):
        assert server.sky(place, body).status == 400
    assert server.sky("clusters/0a/terminal", {"rank": 0}).status == 404
    assert server.sky(place, {"rank": 0}, Authorization="token wrong").status == 403


def test_a_server_without_terminals_says_so(tmp_path: Path, alone: Cluster) -> None:
    with serve(tmp_path, "--ServerApp.terminals_enabled=False") as server:
        answer = server.sky(f"clusters/{alone.id}/terminal", {"rank": 0})
        assert (answer.status, "has no terminals" in answer.message) == (409, True)
