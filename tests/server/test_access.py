"""Who may ask: no user without a token, and no other page on behalf of a user."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from jupyter_server.auth.authorizer import Authorizer
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_sky.server.handlers import add_routes
from tests.server.jupyter import Server, serve

NO_TOKEN = {"Accept": "application/json"}
LOGS = ["clusters/0a/logs/0", "clusters/0a/logs/0/file"]
ASKED = ["clusters/0a/history?since=0", "clusters/0a/variables"]
RUNS = ["clusters/0a/runs", "clusters/0a/runs/0a"]
GETS = ["clusters", *LOGS, *ASKED, *RUNS, "kernels/0a", "offers", "anything"]
POSTS = [
    f"clusters/0a/{each}"
    for each in ("interrupt", "restart", "scale", "down", "profile", "terminal")
]


@pytest.mark.parametrize("path", GETS)
def test_nothing_is_told_without_a_token(server: Server, path: str) -> None:
    assert server.sky(path, **NO_TOKEN).status == 403
    assert server.sky(path, Authorization="token wrong").status == 403
    assert "log in to Jupyter" in server.sky(path, **NO_TOKEN).message


@pytest.mark.parametrize("path", POSTS)
def test_nothing_is_done_without_a_token(server: Server, path: str) -> None:
    assert server.sky(path, {}, **NO_TOKEN).status == 403


@pytest.mark.parametrize("path", POSTS)
def test_nothing_is_done_for_another_page(server: Server, path: str) -> None:
    cookies, xsrf = server.cookies()
    assert server.sky("clusters", Cookie=cookies).status == 200
    assert server.sky(path, {"ranks": None}, Cookie=cookies).status == 403
    wrong = {"Cookie": cookies, "X-XSRFToken": "2|wrong"}
    assert server.sky(path, {"ranks": None}, **wrong).status == 403
    right = {"Cookie": cookies, "X-XSRFToken": xsrf}
    assert server.sky(path, {"ranks": None, "nodes": 1}, **right).status in (400, 404)


def live(server: Server, **headers: str) -> int:
    """The status with which the server answers who wants to follow a log."""

    async def connect() -> int:
        url = f"{server.address.replace('http', 'ws', 1)}jupyter-sky/api/clusters/0a/live/0"
        try:
            connection = await websocket_connect(HTTPRequest(url, headers=headers))
        except HTTPClientError as error:
            return error.code
        connection.close()
        return 101

    return asyncio.run(connect())


def test_no_log_is_followed_without_a_token_or_from_another_page(server: Server) -> None:
    cookies, _ = server.cookies()
    assert live(server) == 403
    assert live(server, Cookie=cookies, Origin="http://elsewhere.example") == 403
    assert live(server, Cookie=cookies) == 101


@pytest.mark.parametrize("path", GETS)
def test_nothing_is_told_to_another_page(server: Server, path: str) -> None:
    cookies, _ = server.cookies()
    other = {"Cookie": cookies, "Origin": "http://elsewhere.example"}
    assert server.sky(path, **other).status in (403, 404)
    assert server.sky("clusters", Cookie=cookies).status == 200


def test_each_route_is_among_those_that_are_tried() -> None:
    added: list[str] = []
    web_app = SimpleNamespace(
        add_handlers=lambda host, rules: added.extend(pattern for pattern, *_ in rules)
    )
    add_routes(MagicMock(base_url="/", web_app=web_app))
    tried = [f"/jupyter-sky/api/{path}" for path in (*GETS, *POSTS, "clusters/0a/live/0")]
    tried = [path.partition("?")[0] for path in tried]
    tried.append("/jupyter-sky/forward/0a/demo/said")  # in test_forwarding.py
    first = {next(each for each in added if re.fullmatch(each, path)) for path in tried}
    assert first == set(added)


class DenyAll(Authorizer):
    """Authorizes no request, asynchronously."""

    async def is_authorized(self, *args: object) -> bool:
        return False


def test_nothing_is_told_to_who_may_not_read(tmp_path: Path) -> None:
    with serve(tmp_path, "--ServerApp.authorizer_class=tests.server.test_access.DenyAll") as server:
        assert server.sky("clusters").status == 403
        assert live(server, Authorization=f"token {server.token}") == 403


@pytest.mark.parametrize(
    "path",
    [
        "clusters/..%2f..%2fetc/logs/0",
        "clusters/%2e%2e/logs/0",
        "clusters/0a/logs/-1",
        "clusters/0a/logs/1e3",
        "clusters/0a/logs/99999999999",
        "clusters/0a/logs/0/more",
        "clusters/0a%00/logs/0",
        "clusters/--help/logs/0",
        "kernels/..%2f..%2fetc",
        "kernels/%00",
        "nothing",
    ],
)
def test_a_path_that_leads_nowhere_gets_a_sentence(server: Server, path: str) -> None:
    answer = server.sky(path)
    assert answer.status in (400, 404)
    assert answer.message


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("restart", b"{"),
        ("restart", b""),
        ("restart", b"\xff\xfe"),
        ("restart", b"[" * 100_000),
        ("restart", {"ranks": "all"}),
        ("restart", {"ranks": [0.5]}),
        ("restart", {"ranks": None, "also": 1}),
        ("scale", {}),
        ("scale", {"nodes": "2; rm", "max_price": None}),
        ("scale", {"nodes": -1, "max_price": None}),
        ("scale", {"nodes": 2, "max_price": "all"}),
    ],
)
def test_a_body_that_says_something_else_gets_a_sentence(
    server: Server, action: str, body: object
) -> None:
    answer = server.sky(f"clusters/0a/{action}", body)
    assert answer.status == 400
    assert answer.message.startswith(f"{action} cannot be read: ")


def test_other_methods_get_a_sentence(server: Server) -> None:
    assert server.fetch("jupyter-sky/api/clusters", {}, "PUT").status == 405
    assert server.fetch("jupyter-sky/api/clusters", {}, "PUT").message
    assert server.fetch("jupyter-sky/api/nothing", {}, "DELETE").status == 404


def test_a_page_that_polls_is_no_activity(server: Server) -> None:
    def last() -> str:
        return str(json.loads(server.fetch("api/status?no_track_activity=1").body)["last_activity"])

    server.fetch("api/contents")
    before = last()
    server.sky("clusters")
    assert last() == before
