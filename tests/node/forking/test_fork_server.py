"""The fork server: what holds of a rank as soon as the agent knows of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import msgpack
import pytest

from jupyter_sky.node.forking import fork_server
from jupyter_sky.node.forking.fork_server import ForkServer
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from tests.waiting import PATIENCE


class _Waiting(ForkServer):
    """Its ranks do nothing."""

    def _become_rank(self, *args: object) -> None:
        signal.pause()


def test_a_rank_that_is_known_can_be_signalled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_system = os.setsid

    def setsid() -> None:
        time.sleep(0.2)  # as on a machine that has other things to do
        of_system()

    monkeypatch.setattr(os, "setsid", setsid)
    agent, side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptors = [os.open(os.devnull, os.O_RDWR) for _ in range(6)]
    with agent, side:
        server = _Waiting(side, side, cast(Any, None), cast(Any, None), tmp_path)
        socket.send_fds(agent, [msgpack.packb({"rank": 0, "env": {}})], descriptors)
        for fd in descriptors:
            os.close(fd)
        assert server._serve_request()
        pid = msgpack.unpackb(agent.recv(4096))["pid"]
        try:
            os.killpg(pid, signal.SIGKILL)
        finally:
            os.kill(pid, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_one_whose_agent_has_ended_before_it_begins_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "never_imported.py").write_text("import time\ntime.sleep(600)")
    spec = AgentSpec(
        cluster="c",
        id="1",
        socket=str(tmp_path / "agent.sock"),
        blobs=str(tmp_path / "blobs"),
        ranks=(),
        grace=60.0,
        cwd=str(tmp_path),
        sys_path=(str(tmp_path),),
        preload=("never_imported",),
    )
    (tmp_path / "spec.json").write_text(spec.to_json())
    agent, side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with side:
        agent.close()
        words = ["-m", fork_server.__name__, str(side.fileno()), str(tmp_path), ""]
        done = subprocess.run(
            [sys.executable, *words], pass_fds=[side.fileno()], timeout=PATIENCE, check=True
        )
    assert done.returncode == 0
