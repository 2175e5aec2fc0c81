"""Pages that nodes serve, in the browser: who sees them, and what gets through either way."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, build_opener

import psutil
import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler, websocket_connect

from jupyter_sky.cluster.network import handshake
from tests.installed import skip_without
from tests.notebook.kernels import Cell
from tests.server.jupyter import Answer, Kernel, Server, serve
from tests.waiting import PATIENCE, until

Open = Callable[[str], Kernel]

SHOW = """
from jupyter_sky.cluster.network.pages import Page
from jupyter_sky.notebook.extension import _extensions
[extension] = _extensions.values()
[cluster] = extension.session.connected_clusters()
cluster.pages.show(Page('demo', 'Demo', 0, '127.0.0.1', {port}, 'start'))
"""


NOT_OF_A_PAGE = (
    *("Alt-Svc", "Clear-Site-Data", "NEL", "Report-To", "Service-Worker-Allowed"),
    *("Access-Control-Allow-Credentials", "WWW-Authenticate", "X-Accel-Redirect", "X-Sendfile"),
)
"""Headers of an answer that are about all of Jupyter's pages, or for a proxy before it."""

DISPOSITION = 'inline; filename="Épreuve 数据.json"'.encode().decode("latin-1")
"""Frameworks that do not escape a name send UTF-8, which HTTP reads as latin-1."""


class Said(RequestHandler):  # type: ignore[misc, unused-ignore]
    """Answers what it was asked, and wants more from the browser than it may have."""

    def get(self, path: str) -> None:
        self.set_status(418 if path == "teapot" else 200)
        self.set_header("Set-Cookie", "_xsrf=mine")
        self.set_header("Access-Control-Allow-Origin", "*")
        for name in NOT_OF_A_PAGE:
            self.set_header(name, "/evil")
        self.set_header("Content-Language", "eo")
        self.set_header("Content-Disposition", DISPOSITION)
        self.set_header("X-TensorBoard-Kept", "yes")
        self.finish(
            {
                "method": self.request.method,
                "uri": self.request.uri,
                "headers": dict(self.request.headers.get_all()),
                "body": self.request.body.decode(),
            }
        )

    head = post = put = delete = get


class Elsewhere(RequestHandler):  # type: ignore[misc, unused-ignore]
    def get(self) -> None:
        self.redirect("/said/there?a=1")


class Early(RequestHandler):  # type: ignore[misc, unused-ignore]
    """Says something of its answer before that."""

    async def get(self) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
        await self.request.connection.stream.write(hints)
        self.finish("late")


class Long(RequestHandler):  # type: ignore[misc, unused-ignore]
    """More than is kept anywhere on the way, or the beginning of it."""

    async def get(self) -> None:
        broken = self.get_query_argument("broken", None)
        for _ in range(200):
            self.write(b"x" * 65536)
            await self.flush()
            if broken:
                self.request.connection.stream.close()
                return


class Echo(WebSocketHandler):  # type: ignore[misc, unused-ignore]
    """Says who asked, and then what it hears."""

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return subprotocols[0] if subprotocols else None

    def open(self) -> None:
        self.write_message(json.dumps(dict(self.request.headers.get_all())))

    def on_message(self, message: str | bytes) -> None:
        self.write_message(message, binary=isinstance(message, bytes))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A page as a node may serve it, on loopback."""
    ready: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []
    began = threading.Event()

    async def work() -> None:
        routes: list[Any] = [
            (r"/said/(.*)", Said),
            (r"/elsewhere", Elsewhere),
            (r"/early", Early),
            (r"/long", Long),
            (r"/echo", Echo),
        ]
        server = HTTPServer(Application(routes))
        sock, port = bind_unused_port()
        server.add_sockets([sock])
        over = asyncio.Event()
        ready.append((port, asyncio.get_running_loop(), over))
        began.set()
        await over.wait()
        server.stop()

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    began.wait()
    [(port, loop, over)] = ready
    yield port
    loop.call_soon_threadsafe(over.set)
    thread.join()


@pytest.fixture(scope="module")
def kernel(server: Server, port: int) -> Iterator[Kernel]:
    kernel = server.open("pages.ipynb")
    kernel.run("%%sky --nodes 1 --cluster pages\npass")
    kernel.run(SHOW.format(port=port))
    yield kernel
    kernel.run("%sky down")


@pytest.fixture(scope="module")
def below(server: Server, kernel: Kernel) -> str:
    """Where the page is, as the list of clusters says it."""
    entry = server.until(
        "pages", lambda each: each["snapshot"] and each["snapshot"]["cluster"]["pages"]
    )
    [page] = entry["snapshot"]["cluster"]["pages"]
    assert page["label"] == "Demo"
    path = str(page["path"])
    assert path.endswith("/start")
    return path.removesuffix("start")


@pytest.fixture(autouse=True)
def none_left() -> None:
    """The cluster of this module stays for all of its tests."""


def websocket(server: Server, path: str, *said: str | bytes, **headers: str) -> list[Any]:
    """What a WebSocket answers, or the status with which it is refused."""

    async def talk() -> list[Any]:
        url = f"{server.address.replace('http', 'ws', 1)}{path}"
        request = HTTPRequest(url, headers=headers)
        try:
            connection = await websocket_connect(request, subprotocols=["first", "second"])
        except HTTPClientError as error:
            return [error.code]
        heard = [connection.selected_subprotocol, await connection.read_message()]
        for message in said:
            await connection.write_message(message, binary=isinstance(message, bytes))
            heard.append(await connection.read_message())
        connection.close()
        return heard

    return asyncio.run(talk())


def test_a_page_is_asked_as_the_browser_asks(server: Server, below: str) -> None:
    answer = server.fetch(f"{below}said/a%20b%2Fc?x=1&token={server.token}&y=%26", b"text", "PUT")
    said = answer.json
    assert (answer.status, answer.headers["Content-Language"]) == (200, "eo")
    assert answer.headers["X-TensorBoard-Kept"] == "yes"
    assert answer.headers["Content-Disposition"] == DISPOSITION
    assert (said["method"], said["uri"]) == ("PUT", "/said/a%20b%2Fc?x=1&y=%26")
    assert said["body"] == "text"
    assert server.fetch(f"{below}said/teapot").status == 418
    assert server.fetch(f"{below}nothing").status == 404
    head = server.fetch(f"{below}said/", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["Content-Length"]) > 100
    assert server.fetch(f"{below}elsewhere").json["uri"] == "/said/there?a=1"


def test_an_answer_may_be_announced(server: Server, below: str) -> None:
    answer = server.fetch(f"{below}early")
    assert (answer.status, answer.body, answer.headers["Link"]) == (200, b"late", None)
    # A large upload waits until it is wanted. Jupyter says so, and the node is not asked.
    headers = {"Authorization": f"token {server.token}", "Expect": "100-continue"}
    told = server.fetch(f"{below}said/", b"text", "PUT", **headers).json
    assert told["body"] == "text"
    assert "Expect" not in told["headers"]


def test_a_node_is_not_asked_for_who_has_left(server: Server, below: str, kernel: Kernel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as page:
        number = page.getsockname()[1]
        path = cell_path(kernel.run(f"%sky forward {number}"))
        process = psutil.Process(kernel.pid)
        process.suspend()  # the way takes a while
        try:
            parts = urlsplit(server.address)
            browser = socket.create_connection((parts.hostname, parts.port))
            ask = f"GET {parts.path}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            browser.sendall(f"{ask}Authorization: token {server.token}\r\n\r\n".encode())
            server.clusters()  # it has asked by now
            browser.close()
            server.clusters()  # and the server has heard that it has left
        finally:
            process.resume()
        page.settimeout(PATIENCE)
        asked, _ = page.accept()
        with asked:
            asked.settimeout(PATIENCE)
            assert asked.recv(1000) == b""
    kernel.run(f"%sky forward {number} --off")


def cell_path(cell: Cell) -> str:
    """The path of a page below the server's, of the cell that has made a link to it."""
    return "jupyter-sky/" + cell.data[0]["text/plain"].partition("jupyter-sky/")[2]


def test_much_gets_through_and_a_part_is_no_whole(server: Server, below: str) -> None:
    assert len(server.fetch(f"{below}long").body) == 200 * 65536
    with pytest.raises(OSError, match="IncompleteRead|reset"):
        try:
            server.fetch(f"{below}long?broken=1")
        except Exception as error:  # urllib raises what is no OSError
            raise OSError(repr(error)) from None


def test_a_node_learns_nothing_of_the_user(server: Server, below: str, port: int) -> None:
    cookies, xsrf = server.cookies()
    headers = {"Cookie": cookies, "X-XSRFToken": xsrf, "Origin": origin(server)}
    # A proxy before Jupyter that lets users in tells it who they are.
    proxied = dict.fromkeys(("X-Forwarded-Access-Token", "Remote-User", "X-Amzn-Oidc"), "secret")
    kept = {"X-Tensorboard-Feature-Flags": "{}", "If-None-Match": '"x"', "Range": "bytes=1-"}
    # A part of a large upload; which notebook of marimo is meant, and which workspace of MLflow.
    kept |= {"Content-Range": "bytes 0-9/20", "Marimo-Session-Id": "s_1", "X-Mlflow-Workspace": "a"}
    for path, given in (
        (f"{below}said/", {}),
        (f"{below}said/?%74oken={server.token}", headers),
        (f"{below}said/", {**headers, **proxied, **kept, "Referer": f"{server.address}lab"}),
    ):
        answer = server.fetch(path, **given)
        told = json.dumps(answer.json)
        assert server.token not in told
        assert "secret" not in told
        assert "/lab" not in told
        assert "ookie" not in told
        assert xsrf not in told
        assert answer.json["headers"]["Host"] == f"127.0.0.1:{port}"
    # Nor does it have a say over the rest of Jupyter.
    assert "_xsrf=mine" not in str(answer.headers.get_all("Set-Cookie"))
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert not [name for name in NOT_OF_A_PAGE if "evil" in (answer.headers[name] or "")]
    # What the page needs for itself does arrive.
    assert kept.items() <= answer.json["headers"].items()


def test_a_page_does_not_learn_the_token_from_its_address(server: Server, below: str) -> None:
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    browser.addheaders = [("Accept", "text/html")]
    url = f"{server.address}{below}said/"
    with browser.open(f"{url}?a=1&token={server.token}&b=2", timeout=PATIENCE) as answer:
        assert answer.url == f"{url}?a=1&b=2"
        assert json.load(answer)["uri"] == "/said/?a=1&b=2"


def test_nothing_of_a_page_stays_in_the_browser(server: Server, below: str) -> None:
    cookies = {"Cookie": server.cookies()[0]}
    answer = server.fetch(f"{below}said/", **cookies, **{"Service-Worker": "script"})
    assert answer.status == 501
    assert b"no service worker" in answer.body


@pytest.mark.parametrize(
    "start",
    [
        "HTTP/1.1 101 Switching\nSet-Cookie: evil=1",
        "HTTP/1.1 101 Switching\r\nSec-WebSocket-Accept: x\rSet-Cookie: evil=1",
        "HTTP/1.1 101 Switching\r\nSet-Cookie: evil=1",
        "HTTP/1.1 101 Switching\r\nAlt-Svc: evil=1",
    ],
)
def test_a_websocket_says_nothing_to_the_browser_before_it_is_one(
    server: Server, below: str, kernel: Kernel, start: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as page:
        page.settimeout(PATIENCE)
        number = page.getsockname()[1]
        path = cell_path(kernel.run(f"%sky forward {number}"))
        parts = urlsplit(server.address)
        with socket.create_connection((parts.hostname, parts.port), PATIENCE) as browser:
            ask = f"GET {parts.path}{path} HTTP/1.1\r\nUpgrade: websocket\r\nConnection: close\r\n"
            login = f"Host: 127.0.0.1\r\nAuthorization: token {server.token}"
            browser.sendall(f"{ask}{login}\r\n\r\n".encode())
            asked, _ = page.accept()
            with asked:
                asked.recv(10_000)
                asked.sendall(f"{start}\r\nUpgrade: websocket\r\n\r\nframes".encode())
            heard = b"".join(iter(lambda: browser.recv(10_000), b""))
        assert b"evil" not in heard
        assert heard.endswith(b"\r\n\r\nframes") or heard.startswith(b"HTTP/1.1 502")
    kernel.run(f"%sky forward {number} --off")


def origin(server: Server) -> str:
    return "/".join(server.address.split("/")[:3])


def test_a_websocket_is_carried_as_it_is(server: Server, below: str) -> None:
    cookies, _ = server.cookies()
    heard = websocket(
        server, f"{below}echo", "text", b"\x00" * 500_000, Cookie=cookies, Origin=origin(server)
    )
    assert heard[0] == "first"
    assert "ookie" not in heard[1]
    assert heard[2:] == ["text", b"\x00" * 500_000]
    assert websocket(server, f"{below}said/no", Authorization=f"token {server.token}") == [502]


REFUSED = {
    "no token": {"Accept": "application/json"},
    "a wrong token": {"Authorization": "token wrong"},
    "another origin": {"Origin": "http://elsewhere.example"},
    "an origin without a name": {"Origin": "null"},
    "another site": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "a frame of a neighbour": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_nobody_else_sees_a_page(server: Server, below: str, why: str, method: str) -> None:
    cookies = {} if "token" in why else {"Cookie": server.cookies()[0]}
    body = None if method == "GET" else b""
    answer = server.fetch(f"{below}said/", body, method, **REFUSED[why], **cookies)
    assert answer.status == 403
    assert b"log in to Jupyter" in answer.body


@pytest.mark.parametrize("why", REFUSED)
def test_nobody_else_opens_a_websocket(server: Server, below: str, why: str) -> None:
    cookies = {} if "token" in why else {"Cookie": server.cookies()[0]}
    assert websocket(server, f"{below}echo", **REFUSED[why], **cookies) == [403]


def test_what_changes_something_says_where_it_comes_from(server: Server, below: str) -> None:
    cookies = {"Cookie": server.cookies()[0]}
    assert server.fetch(f"{below}said/", b"", "POST", **cookies).status == 403
    assert websocket(server, f"{below}echo", **cookies) == [403]
    here = {**cookies, "Origin": origin(server)}
    assert server.fetch(f"{below}said/", b"", "POST", **here).status == 200
    # A link in a mail may lead to a page; who is not logged in is asked to.
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Accept": "text/html"}
    assert server.fetch(f"{below}said/", **link, **cookies).json["method"] == "GET"
    assert b"Password or token" in server.fetch(f"{below}said/", **link).body


def test_an_authorizer_is_asked(tmp_path: Path) -> None:
    with serve(tmp_path, "--ServerApp.authorizer_class=tests.server.test_access.DenyAll") as server:
        assert server.fetch("jupyter-sky/forward/0a/demo/").status == 403


BEFORE_2_13 = """
from jupyter_server.base.handlers import JupyterHandler
def prepare(self, prepare=JupyterHandler.prepare):
    return prepare(self)
JupyterHandler.prepare = prepare
"""
STRICT = "c.ServerApp.allow_unauthenticated_access = False"


@pytest.mark.parametrize("config", [BEFORE_2_13, STRICT], ids=["an old one", "a strict one"])
def test_another_server_asks_who_sees_a_page_as_well(tmp_path: Path, config: str) -> None:
    with serve(tmp_path, config=config) as server:
        page = "jupyter-sky/forward/0a/demo/"
        assert server.fetch(page).status == 503
        assert b"Password or token" in server.fetch(page, Accept="text/html").body
        assert server.fetch(page, Accept="*/*").status == 403
        assert websocket(server, page, Origin=origin(server)) == [403]


def test_a_page_that_is_not_there_gets_a_sentence(server: Server, below: str) -> None:
    said = server.fetch(below.replace("/demo/", "/other/"))
    assert (said.status, said.body) == (503, b"that page is no longer shown.\n")
    nowhere = server.fetch("jupyter-sky/forward/0a/demo/")
    assert nowhere.status == 503
    assert b"no notebook is connected" in nowhere.body
    assert server.fetch("jupyter-sky/forward/..%2f/demo/").status == 404


def test_the_way_is_for_who_has_the_key(server: Server, below: str, kernel: Kernel) -> None:
    assert server.fetch(f"{below}said/").status == 200
    port = int(kernel.run("print(cluster.pages.way('demo').port)").stdout)

    async def told(said: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    assert asyncio.run(told(b"GET /said/ HTTP/1.1\r\nHost: x\r\n\r\n" + b"\r\n" * 64)) == b""
    assert asyncio.run(told(handshake.hello(b"x" * 32)[0])) == b""


def test_who_took_the_port_is_not_asked(server: Server, below: str, kernel: Kernel) -> None:
    assert server.fetch(f"{below}said/").status == 200
    # The same port, of a process that does not know the key: another user's, for instance.
    kernel.run(
        "import socket, threading\n"
        "way = cluster.pages.way('demo')\n"
        "cluster.pages._forwards['demo'][0].close()\n"
        "heard, taken = [], None\n"
        "while taken is None:\n"
        "    try:\n"
        "        taken = socket.create_server(('127.0.0.1', way.port))\n"
        "    except OSError:\n"
        "        pass\n"
        "def listen():\n"
        "    found, _ = taken.accept()\n"
        "    heard.append(found.recv(1000))\n"
        "    found.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nevil')\n"
        "    found.close()\n"
        "threading.Thread(target=listen, daemon=True).start()\n"
        "page = cluster.pages._pages['demo']\n"
        "cluster.pages.hide('demo'); cluster.pages.show(page)\n"
    )
    answer = server.fetch(f"{below}said/")
    assert answer.status == 200
    assert answer.json["method"] == "GET"
    assert "False" in kernel.run("print(b'HTTP' in heard[0])").stdout


def test_a_page_is_there_while_the_kernel_is_busy(
    server: Server, below: str, kernel: Kernel
) -> None:
    cell = kernel.start("input_ = 0\nimport time\nprint('busy', flush=True)\ntime.sleep(600)")
    kernel.until(cell, lambda cell: "busy" in cell.stdout)
    answers: list[Answer] = [server.fetch(f"{below}said/") for _ in range(3)]
    assert [each.status for each in answers] == [200] * 3
    server.fetch(f"api/kernels/{kernel.id}/interrupt", b"", "POST")
    kernel.finish(cell)


def test_any_port_of_a_node_has_a_link(
    server: Server, below: str, kernel: Kernel, port: int
) -> None:
    cell = kernel.run(f"%sky forward {port}")
    [bundle] = cell.data
    assert bundle["text/plain"].startswith(f"Port {port} of rank 0: /")
    path = bundle["text/plain"].partition("jupyter-sky/")[2]
    assert f'jupyter-sky/{path}" target="_blank"' in bundle["text/html"]
    answer = server.fetch(f"jupyter-sky/{path}said/")
    assert (answer.status, answer.json["uri"]) == (200, "/said/")
    cookies, _ = server.cookies()
    heard = websocket(
        server, f"jupyter-sky/{path}echo", "over it", Cookie=cookies, Origin=origin(server)
    )
    assert heard[2:] == ["over it"]
    assert server.fetch(f"jupyter-sky/{path}said/", Authorization="token wrong").status == 403
    shown = server.until("pages", lambda each: len(each["snapshot"]["cluster"]["pages"]) == 2)
    labels = [page["label"] for page in shown["snapshot"]["cluster"]["pages"]]
    assert labels == ["Demo", f"Port {port} of rank 0"]
    assert "is not shown" in kernel.run(f"%sky forward {port} --off").stdout
    assert server.fetch(f"jupyter-sky/{path}said/").status == 503
    # One that nobody serves says so where the page would be.
    path = cell_path(kernel.run("%sky forward 1"))
    silent = server.fetch(path, Authorization=f"token {server.token}", Accept="text/html")
    assert "does not answer" in silent.body.decode()
    # TensorBoard takes seconds to start: who has opened its page has not to load it again.
    assert silent.headers["Refresh"] == "3"
    assert "Refresh" not in server.fetch(path).headers
    kernel.run("%sky forward 1 --off")


EVIL = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<script>evil()</script>")
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_what_another_user_serves_at_the_port_is_not_shown(
    server: Server, below: str, kernel: Kernel
) -> None:
    nobody = 65534
    words = ["/usr/bin/python3", "-I", "-c", EVIL]
    with subprocess.Popen(
        words,
        user=nobody,
        group=nobody,
        extra_groups=[],
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout
            port = int(other.stdout.readline())
            cell = kernel.run(f"%sky forward {port}")
            page = cell_path(cell)
            answer = server.fetch(page)
            assert answer.status == 502
            assert b"another user of the node may have its port" in answer.body
        finally:
            other.kill()
    kernel.run(f"%sky forward {port} --off")


BOARD = """%%sky
import subprocess, sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter({logs!r})
value = Summary.Value(tag="loss", simple_value=0.5)
writer.add_event(Event(step=7, wall_time=time.time(), summary=Summary(value=[value])))
writer.close()
words = [sys.executable, "-m", "tensorboard.main", "--logdir", {logs!r}, "--port", "{port}"]
board = subprocess.Popen(words)
"""


def test_tensorboard_shows_what_a_rank_has_logged(
    server: Server, below: str, kernel: Kernel, tmp_path: Path
) -> None:
    skip_without("tensorboard")
    sock, port = bind_unused_port()
    sock.close()
    kernel.run(BOARD.format(logs=str(tmp_path), port=port))
    try:
        cell = kernel.run(f"%sky forward {port}")
        page = cell_path(cell)
        until(lambda: server.fetch(page).status == 200)
        assert b"TensorBoard" in server.fetch(page).body
        # What the page asks for comes from below it.
        assert server.fetch(f"{page}index.js").status == 200
        until(lambda: server.fetch(f"{page}data/plugin/scalars/tags").json)
        assert "loss" in str(server.fetch(f"{page}data/plugin/scalars/tags").json)
        scalars = server.fetch(f"{page}data/plugin/scalars/scalars?run=.&tag=loss").json
        assert [point[1:] for point in scalars] == [[7, 0.5]]
    finally:
        kernel.run(f"%sky forward {port} --off")
        kernel.run("%%sky\nboard.terminate(); board.wait()")
