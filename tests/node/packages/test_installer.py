"""Installations on a node: stopped and undone, which uv is run, and what it says of a failure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.node.packages import overlay
from jupyter_sky.node.packages.installer import PackageInstaller, what_failed
from jupyter_sky.serialization import blobs
from jupyter_sky.transport.protocol.agent_requests import SENT_WHEELS, InstallRequest, WheelBlob
from tests.lab import wheels

TREE = """
  × No solution found when resolving dependencies:
  ╰─▶ Because nosuch was not found and you require nosuch, we conclude this.
"""

BUILD = """
Using Python 3.11.7 environment at: /x
error: Failed to build `bad @ file:///x/bad`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta.get_requires` failed (exit status: 1)

         [stderr]
         Traceback (most recent call last):
           File "<string>", line 2, in <module>
         RuntimeError: needs a compiler

hint: Build failures usually indicate a problem with the package
"""

NETWORK = """
error: Request failed after 3 retries in 7.4s
  cause: Failed to fetch: https://index/nosuch/
  cause: Connection refused (os error 111)
"""

FULL = """
error: Failed to install: greeting-1.0-py3-none-any.whl (greeting==1.0)
  cause: Failed to copy to `/agent/packages/1/greeting.py`
  cause: failed to copy file from /c/x to /agent/packages/1/.tmp6: No space left on device (os e
"""

FULL_CACHE = """
error: Failed to download `greeting==1.0`
  cause: I/O operation failed during extraction
  cause: failed to write to file `/cache/a b/greeting.py`: No space left on device (os e
"""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            TREE,
            "No solution found when resolving dependencies: "
            "Because nosuch was not found and you require nosuch, we conclude this",
        ),
        (BUILD, "Failed to build `bad @ file:///x/bad`: RuntimeError: needs a compiler"),
        (
            NETWORK,
            "Request failed after 3 retries in 7.4s: Failed to fetch: https://index/nosuch/: "
            "Connection refused (os error 111)",
        ),
        (
            FULL,
            "Failed to install: greeting-1.0-py3-none-any.whl (greeting==1.0): "
            "the disk at / is full",
        ),
        (FULL_CACHE, "Failed to download `greeting==1.0`: the disk at / is full"),
        ("error: unexpected argument", "unexpected argument"),
        ("Illegal instruction", "Illegal instruction"),
        ("", ""),
    ],
)
def test_what_uv_says_of_a_failure(said: str, line: str) -> None:
    assert what_failed(said.splitlines()) == line


@pytest.mark.parametrize("whose", ["the user's", "another user's", "everybody's"])
def test_uv_is_run_only_from_where_nobody_else_can_put_one(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    agent, blobs, ours = tmp_path / "agent", tmp_path / "blobs", tmp_path / "cache/jupyter-sky"
    for folder in (agent, blobs, ours / "bin"):
        folder.mkdir(parents=True)
    (blobs / ("a" * 64)).write_text("as sent")
    (ours / f"bin/uv-{platform.machine()}").write_text("of before")
    if whose != "the user's":
        ours.chmod(0o777 if whose == "everybody's" else 0o755)
        os.chown(ours, *[0 if whose == "everybody's" else 65534] * 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(ours.parent))
    request: Any = {"uv": {"blob": "a" * 64, "size": 7}}
    found = PackageInstaller(agent, BlobStore(blobs, 100), lambda: False)._program(request)
    assert found is not None
    assert found.read_text() == ("of before" if whose == "the user's" else "as sent")


class Node:
    """A node on which greeting can be installed, in two versions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "agent"
        self._folder.mkdir()
        self._shelf = folder / "shelf"
        for version in ("1.0", "2.0"):
            wheels.write(self._shelf, "greeting", version, greeting=f"WORD = {version!r}\n")
        self.notebooks = 2
        (folder / "blobs").mkdir()
        self._store = BlobStore(folder / "blobs", 1_000_000)
        self.installer = PackageInstaller(self._folder, self._store, lambda: self.notebooks > 1)

    def _sent(self, wheel: Path) -> WheelBlob:
        content = wheel.read_bytes()
        key = blobs.digest(content)
        self._store.add(key, 0, memoryview(content), len(content))
        return {"blob": key, "size": len(content)}

    async def install(
        self, name: str, version: str, index: str = "", sent: Sequence[Path] = ()
    ) -> str:
        """Carry an installation out; return why that failed."""
        sources = ["--default-index", index] if index else ["--no-index"]
        if sent:
            sources += ["--find-links", SENT_WHEELS]
        request: InstallRequest = {
            "installation": name,
            "requirements": [f"greeting=={version}"],
            "settings": "",
            "options": [*sources, *([] if index else ["--find-links", str(self._shelf)])],
            "wheels": {wheel.name: self._sent(wheel) for wheel in sent},
            "env": {"UV_CACHE_DIR": str(self._folder / "cache")},
            "uv": None,
        }
        return (await self.installer.install(request))["trouble"]

    @property
    def word(self) -> str:
        """What ranks import."""
        module = overlay.link(self._folder) / "greeting.py"
        return module.read_text() if module.exists() else "nothing"

    @property
    def folders(self) -> int:
        """How many installations there are files of."""
        kept = (self._folder / "packages").iterdir()
        return sum(each.is_dir() and not each.is_symlink() for each in kept)


def test_what_is_done_is_undone_where_it_is_stopped_before_that_is_known(tmp_path: Path) -> None:
    async def check() -> None:
        node = Node(tmp_path)
        assert not await node.install("first", "1.0")
        assert not await node.install("second", "2.0")
        assert node.word == "WORD = '2.0'\n"
        node.installer.stop("first")  # which another one has followed
        assert node.word == "WORD = '2.0'\n"
        node.installer.stop("second")
        assert node.word == "WORD = '1.0'\n"
        assert not await node.install("third", "2.0")
        node.installer.keep("third")
        node.installer.stop("third")
        assert node.word == "WORD = '2.0'\n"
        assert node.folders == 1

    asyncio.run(check())


def test_a_stop_that_comes_before_what_it_stops_is_heeded(tmp_path: Path) -> None:
    async def check() -> None:
        node = Node(tmp_path)
        node.installer.stop("first")
        assert await node.install("first", "1.0") == "it was stopped"
        assert node.word == "nothing"

    asyncio.run(check())


@contextlib.asynccontextmanager
async def stuck(node: Node) -> AsyncIterator[asyncio.Future[str]]:
    """Begin the installation ``first``, whose index never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        index = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
        first = asyncio.ensure_future(node.install("first", "1.0", index))
        asked, _ = await asyncio.get_running_loop().sock_accept(server)
        yield first
        asked.close()


def test_one_whose_notebook_is_gone_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def check() -> None:
        node = Node(tmp_path)
        async with stuck(node) as first:
            node.notebooks = 1
            assert not await node.install("second", "2.0")
            assert await first == "it was stopped"
        assert node.word == "WORD = '2.0'\n"

    asyncio.run(check())


def test_one_that_waits_for_its_turn_is_stopped_and_not_the_one_before_it(tmp_path: Path) -> None:
    async def check() -> None:
        node = Node(tmp_path)
        async with stuck(node) as first:
            second = asyncio.ensure_future(node.install("second", "2.0"))
            await asyncio.sleep(0)
            node.installer.stop("second")
            assert not first.done()
            node.installer.stop("first")
            assert await first == "it was stopped"
        assert await second == "it was stopped"
        assert node.word == "nothing"

    asyncio.run(check())


def test_where_the_folder_of_a_node_was_removed_the_user_is_told_what_to_do(tmp_path: Path) -> None:
    async def check() -> None:
        node = Node(tmp_path)
        assert not await node.install("first", "1.0")
        shutil.rmtree(tmp_path / "agent")
        assert await node.install("second", "2.0") == (
            f"somebody has removed {tmp_path / 'agent'}, where a cluster has its packages: end it "
            "with `%sky down`, and start it again"
        )

    asyncio.run(check())


@pytest.mark.parametrize("is_there", [True, False])
def test_wheels_that_were_sent_do_not_stay(tmp_path: Path, is_there: bool) -> None:
    async def check() -> None:
        node = Node(tmp_path)
        sent = [wheels.write(tmp_path / "sent", "greeting", "3.0", greeting="WORD = '3.0'\n")]
        failed = await node.install("first", "3.0" if is_there else "4.0", sent=sent)
        node.installer.keep("first")
        assert bool(failed) is not is_there
        assert node.word == ("WORD = '3.0'\n" if is_there else "nothing")
        assert node.folders == 1

    asyncio.run(check())
