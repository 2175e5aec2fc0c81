"""Shells as a node keeps them: what nobody reads waits, and what nobody wants ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from jupyter_sky.node.shells import shells
from jupyter_sky.node.shells.shells import Shells
from jupyter_sky.node.shells.terminal import Terminal
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from tests.node_processes import is_there
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.delenv("ENV", raising=False)


def made(folder: Path, typed: list[int] | None = None) -> Shells:
    spec = AgentSpec(
        cluster="c",
        id="0a",
        socket="",
        blobs="",
        ranks=(),
        grace=1.0,
        idle_timeout=None,
        cwd=str(folder),
        env={"WORD": "of all"},
    )
    own = {3: {"OWN": "of rank 3"}}
    heard = typed if typed is not None else []
    return Shells(folder, spec, own.get, os.getpid(), lambda: heard.append(1))


async def ask(of: Shells, op: str, **fields: Any) -> Message:
    answer = of.handlers[op](fields)
    return answer if isinstance(answer, dict) else await cast(Awaitable[Message], answer)


async def begun(of: Shells) -> int:
    answer = await ask(of, "open_shell", rank=3, term="dumb", rows=24, columns=80)
    return int(answer["shell"])


async def read_until(of: Shells, number: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += (await ask(of, "read_shell", shell=number))["data"]
    return seen


def test_it_has_what_the_rank_has(tmp_path: Path) -> None:
    async def work() -> None:
        typed: list[int] = []
        of = made(tmp_path, typed)
        number = await begun(of)
        before = len(typed)
        await ask(of, "type_in_shell", shell=number, data=b"echo $OWN, $WORD, $PWD; exit 4\n")
        assert len(typed) == before + 1
        assert await read_until(of, number, f"of rank 3, of all, {tmp_path}\r\n".encode())
        status = None
        while status is None:
            status = (await ask(of, "read_shell", shell=number))["status"]
        assert status == 4
        assert "not on this node" in (await ask(of, "open_shell", rank=9, term=""))["error"]
        await of.end()

    asyncio.run(work())


def test_what_nobody_reads_is_not_kept(tmp_path: Path) -> None:
    async def work() -> None:
        of = made(tmp_path)
        number = await begun(of)
        terminal = of._open[number]
        await ask(of, "type_in_shell", shell=number, data=b"yes\n")
        while len(terminal._printed) < 256 * 1024:
            await asyncio.sleep(0.01)
        for _ in range(20):  # turns in which it would go on
            await asyncio.sleep(0.005)
        assert len(terminal._printed) < 512 * 1024
        # It goes on for who reads, and Ctrl-C ends it.
        for _ in range(10):
            assert (await ask(of, "read_shell", shell=number))["data"]
        await ask(of, "type_in_shell", shell=number, data=b"\x03")
        await ask(of, "type_in_shell", shell=number, data=b"echo af''ter\n")
        await read_until(of, number, b"after\r\n")
        await ask(of, "close_shell", shell=number)
        await of.end()

    asyncio.run(work())


def test_a_shell_whose_user_is_gone_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells, "GONE_AFTER", 0.5)
    monkeypatch.setattr(shells, "_LOOK_EVERY", 0.05)

    async def work() -> None:
        of = made(tmp_path)
        number = await begun(of)
        process = psutil.Process(of._open[number]._process.pid)
        waiting = asyncio.ensure_future(read_until(of, number, b"never printed"))
        await ask(of, "type_in_shell", shell=number, data=b"sleep 1000\n")
        await asyncio.sleep(1)
        assert process.is_running()  # someone waits for what it prints
        waiting.cancel()
        while is_there(process):
            await asyncio.sleep(0.02)
        assert "ended" in (await ask(of, "read_shell", shell=number))["error"]
        await of.end()

    asyncio.run(work())


def test_what_shells_have_left_running_ends_with_them(tmp_path: Path) -> None:
    async def left_by(of: Shells, line: bytes) -> tuple[int, psutil.Process]:
        number = await begun(of)
        await ask(of, "type_in_shell", shell=number, data=line + b" & echo left=$!,\n")
        seen = b""
        while not (found := re.search(rb"left=(\d+),", seen)):
            seen += (await ask(of, "read_shell", shell=number))["data"]
        return number, psutil.Process(int(found[1]))

    async def work() -> None:
        of, other = made(tmp_path / "one"), made(tmp_path / "other")
        closed, first = await left_by(of, b"nohup sleep 1000")
        _, second = await left_by(of, b"nohup env -i sleep 1000")
        _, third = await left_by(other, b"nohup sleep 1000")
        try:
            await ask(of, "close_shell", shell=closed)
            assert is_there(first) and is_there(second)
            await of.end()
            until(lambda: not is_there(first) and not is_there(second))
            assert is_there(third)
        finally:
            await other.end()
            for process in (first, second, third):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    asyncio.run(work())


def test_a_program_that_hears_no_hangup_ends_all_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        command = ["/bin/sh", "-c", "trap '' HUP TERM; echo begun; while :; do sleep 0.1; done"]
        terminal = await Terminal.open(command, dict(os.environ), tmp_path, 1000, (24, 80))
        printed = b""
        while printed != b"begun\r\n":
            printed += (await terminal.read())[0]
        await terminal.hang_up()
        assert not psutil.pid_exists(terminal._process.pid)
        assert (await terminal.read()) == (b"", 128 + 9)

    asyncio.run(work())


BECOMES_ANOTHER = """
import asyncio, os, sys
from pathlib import Path
from jupyter_sky.node.shells.terminal import Terminal

async def work():
    command = ["setpriv", "--reuid", "65534", "sh", "-c", "trap '' HUP; echo on; exec sleep 600"]
    terminal = await Terminal.open(command, dict(os.environ), Path("/"), 1000, (24, 80))
    printed = b""
    while b"on" not in printed:
        printed += (await terminal.read())[0]
    print(terminal.session, flush=True)
    await terminal.hang_up()
    os._exit(0)

asyncio.run(work())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_shell_that_became_another_user_keeps_nothing_from_ending() -> None:
    # As of `exec sudo -i`: a root that may not kill others sees of it what a user sees of root.
    agent = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill", sys.executable, "-c"]
    with subprocess.Popen([*agent, BECOMES_ANOTHER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        left = int(process.stdout.readline())
        try:
            assert process.wait(timeout=PATIENCE) == 0
        finally:
            os.kill(left, signal.SIGKILL)
            process.kill()


def test_shells_end_though_a_process_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    async def use() -> None:
        opened = made(tmp_path)
        await begun(opened)
        # Who reads the variables of a process that hangs may have to wait as long as it does.
        monkeypatch.setattr(psutil.Process, "environ", lambda process: {"_": goes_on.wait()})
        monkeypatch.setattr(shells, "_SWEPT_WITHIN", 0.1)
        try:
            async with asyncio.timeout(PATIENCE):
                await opened.end()
        finally:
            goes_on.set()

    asyncio.run(use())
