"""The fork server: what holds of a rank as soon as the agent knows of it."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any, cast

import msgpack
import pytest

from jupyter_sky.node.forking.fork_server import ForkServer


class _Waiting(ForkServer):
    """Its ranks do nothing."""

    def _become_rank(self, *args: object) -> None:
        signal.pause()


def test_a_rank_that_is_known_can_be_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    of_system = os.setsid

    def setsid() -> None:
        time.sleep(0.2)  # as on a machine that has other things to do
        of_system()

    monkeypatch.setattr(os, "setsid", setsid)
    agent, side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptors = [os.open(os.devnull, os.O_RDWR) for _ in range(6)]
    with agent, side:
        server = _Waiting(side, side, cast(Any, None), cast(Any, None))
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
