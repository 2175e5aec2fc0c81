"""A fork server that hangs: what it does not say is found out, or said."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

from jupyter_sky.node.supervisor.output.log_file import LogFile
from jupyter_sky.node.supervisor.processes import fork_client
from jupyter_sky.node.supervisor.processes.fork_client import ForkClient
from jupyter_sky.node.supervisor.rank_process import RankProcess
from tests.waiting import PATIENCE


class _Listener:
    """What the supervisor is told, in words."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_imported(self, versions: Any, missing: Any) -> None:
        self.heard.append("imported")

    def on_forked(self, process: RankProcess) -> None:
        self.heard.append(f"forked {process.rank}")

    def on_not_forked(self, process: RankProcess, reason: str) -> None:
        self.heard.append(f"not forked {process.rank}")

    def on_late(self, process: RankProcess) -> None:
        self.heard.append(f"late {process.rank}")

    def on_exited(self, pid: int, status: int) -> None:
        self.heard.append(f"exited {status}")

    def on_fork_server_lost(self) -> None:
        self.heard.append("lost")

    async def until(self, *words: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.heard != list(words):
                await asyncio.sleep(0.01)


def test_a_rank_whose_end_is_not_said_has_ended_and_a_new_one_that_does_not_come_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "ANSWERS_WITHIN", 0.05)

    async def main() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener, log = _Listener(), LogFile(tmp_path / "rank0.log")
        client = ForkClient(ours, listener)
        client.start()
        rank = RankProcess(0, log, lambda *_: None, lambda *_: None)
        client.fork(rank, {})
        theirs.send(msgpack.packb({"prepared": {}, "missing": {}}))
        _, descriptors, _, _ = socket.recv_fds(theirs, 4096, 8)
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        process = subprocess.Popen(command, pass_fds=descriptors)
        for each in descriptors:
            os.close(each)
        theirs.send(msgpack.packb({"forked": 0, "pid": process.pid}))
        await listener.until("imported", "forked 0")
        process.kill()  # nobody waits for it, as where the fork server hangs
        await listener.until("imported", "forked 0", f"exited {-signal.SIGKILL}")
        process.wait()
        rank.close()
        client.fork(rank, {})
        listener.heard.clear()
        await listener.until("late 0")
        theirs.send(msgpack.packb({"forked": 0, "pid": os.getpid()}))
        await listener.until("late 0", "forked 0")
        rank.close()
        for each in (ours, theirs):
            each.close()

    asyncio.run(main())
