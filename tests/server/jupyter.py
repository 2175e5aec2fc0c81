"""A real Jupyter server with the extension, its kernels, and requests to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
from jupyter_client import BlockingKernelClient

from jupyter_sky.server import schema
from tests.notebook.kernels import Cell
from tests.paths import ROOT
from tests.waiting import PATIENCE, until

BASE = "/user/ada%20l/"


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    body: bytes
    headers: Message

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_refuse)

    @property
    def message(self) -> str:
        """The sentence about what went wrong."""
        schema.check("ErrorMessage", self.json)
        return str(self.json["message"])


def _refuse(constant: str) -> None:
    raise AssertionError(f"no page can read {constant}")


@dataclass
class Server:
    """A Jupyter server below a prefix, as behind a hub."""

    address: str
    token: str
    folder: Path
    runtime: Path
    kernels: list[Kernel] = field(default_factory=list)

    def fetch(
        self, path: str, body: Any = None, method: str | None = None, **headers: str
    ) -> Answer:
        """Ask for something, with a token unless there are headers."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.address}{path}",
            data=data,
            headers=headers or {"Authorization": f"token {self.token}"},
            method=method or ("GET" if body is None else "POST"),
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return Answer(response.status, response.read(), response.headers)
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read(), error.headers)

    def sky(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask one of our routes for something."""
        return self.fetch(f"jupyter-sky/api/{path}", body, **headers)

    def clusters(self) -> dict[str, dict[str, Any]]:
        """All clusters, by their names."""
        answer = self.sky("clusters")
        assert answer.status == 200, answer.body
        schema.check("Clusters", answer.json)
        return {each["name"]: each for each in answer.json["clusters"]}

    def until(self, name: str, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Ask until a cluster is there of which a condition holds; return it."""
        while True:
            entry = self.clusters().get(name)
            if entry is not None and condition(entry):
                return entry
            time.sleep(0.05)  # to answer takes work, and what is waited for needs the processor

    def act(self, entry: dict[str, Any], action: str, body: Any = None) -> Answer:
        """Do something with a cluster."""
        return self.sky(f"clusters/{entry['id']}/{action}", {} if body is None else body)

    def open(self, name: str) -> Kernel:
        """Open a notebook with a kernel that has the extension."""
        nbformat.write(nbformat.v4.new_notebook(), self.folder / name)
        model = {"path": name, "type": "notebook", "name": "", "kernel": {"name": "python3"}}
        answer = self.fetch("api/sessions", model)
        assert answer.status == 201, answer.body
        kernel = Kernel(self, name, answer.json["kernel"]["id"])
        self.kernels.append(kernel)
        kernel.run("%load_ext jupyter_sky\n%config Sky.plugin = 'none'")
        return kernel

    def cookies(self) -> tuple[str, str]:
        """Log in as a browser does; return its cookies and its XSRF token."""
        jar = CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        opener.open(f"{self.address}login?token={self.token}", timeout=PATIENCE).read()
        values = {cookie.name: str(cookie.value) for cookie in jar}
        return "; ".join(f"{name}={value}" for name, value in values.items()), values["_xsrf"]


class Kernel:
    """A kernel of a server, and the notebook that it is for."""

    def __init__(self, server: Server, notebook: str, identity: str) -> None:
        self.server = server
        self.notebook = notebook
        self.id = identity
        self._connect()

    def start(self, code: str) -> Cell:
        """Send a cell to the kernel."""
        return Cell(self._client.execute(code))

    def run(self, code: str) -> Cell:
        """Run a cell that has to work."""
        cell = self.finish(self.start(code))
        assert cell.error is None, cell.traceback
        return cell

    def until(self, cell: Cell, condition: Callable[[Cell], object]) -> None:
        """Read what comes back until a condition holds."""
        while not condition(cell):
            assert not cell.idle, f"the cell ended before: {cell}"
            self._read(cell)

    def finish(self, cell: Cell) -> Cell:
        """Read what comes back until the cell has ended."""
        while not cell.idle:
            self._read(cell)
        return cell

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        return int(self.run("import os; print(os.getpid())").stdout)

    def close(self) -> None:
        """End the kernel as the server does."""
        self._client.stop_channels()
        self.server.fetch(f"api/kernels/{self.id}", method="DELETE")

    def _connect(self) -> None:
        self._client = BlockingKernelClient()
        self._client.load_connection_file(str(self.server.runtime / f"kernel-{self.id}.json"))
        self._client.start_channels(hb=False)  # of a loaded machine: it beats late
        self._client.wait_for_ready(timeout=PATIENCE)

    def _read(self, cell: Cell) -> None:
        message = self._client.get_iopub_msg(timeout=PATIENCE)
        if message["parent_header"].get("msg_id") == cell.id:
            cell.take(message["msg_type"], message["content"])


def said(process: subprocess.Popen[str], pattern: str) -> tuple[str, ...]:
    """Return the groups of what a server writes to stderr, its address first, once it listens.

    It says where a moment before it does. What it writes later is read as well: a server whose
    messages nobody takes waits in the midst of one.
    """
    assert process.stderr
    lines = iter(process.stderr.readline, "")
    groups = next(found.groups() for line in lines if (found := re.search(pattern, line)))
    threading.Thread(target=deque, args=(lines, 0), daemon=True).start()
    until(lambda: process.poll() is not None or _listens(groups[0]))
    return groups


def end(process: subprocess.Popen[str]) -> None:
    """End a server, and wait until it has ended."""
    process.terminate()
    try:
        process.wait(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        # All is closed, but for a thread of AnyIO's for files: seen once in many whole runs.
        process.kill()
        process.wait()


def _listens(address: str) -> bool:
    parts = urlsplit(address)
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE).close()
        return True
    return False


@contextmanager
def serve(home: Path, *options: str, config: str = "") -> Iterator[Server]:
    """Serve notebooks from a new folder below ``home``, with a configuration file in Python."""
    folder, runtime = home / "notebooks", home / "runtime"
    folder.mkdir()
    (home / "config").mkdir()
    (home / "config" / "jupyter_server_config.py").write_text(config)
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.lab.kernel_ports", "jupyter_server"),
            *("--no-browser", "--allow-root"),
            *("--ip=127.0.0.1", "--port=0", f"--ServerApp.base_url={BASE}"),
            f"--ServerApp.root_dir={folder}",
            "--ServerApp.jpserver_extensions={'jupyter_sky.server': True}",
            *options,
        ],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address, token = said(process, r"(http://127\.0\.0\.1:\d+/\S*?/)(?:tree)?\?token=(\w+)")
        server = Server(address, token, folder, runtime)
        try:
            yield server
        finally:
            # Its open sockets would keep the process of a failed test from ending.
            for kernel in server.kernels:
                kernel.close()
    finally:
        end(process)
