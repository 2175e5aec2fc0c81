"""A node without descriptors or processes: its ranks live, and what is lost comes back."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.state import RankPhase
from jupyter_sky.node.agent.server import MOST_CLIENTS
from jupyter_sky.providers.local import Local
from tests import waiting
from tests.cluster.conftest import Cells
from tests.faults.limits import NoControlGroups, descriptors, no_more_processes
from tests.faults.parts import agent_of, folder_of, fork_server_of, until


def pids(cells: Cells) -> list[int]:
    return cells.ask("__import__('os').getpid()")


def trouble(cells: Cells, rank: int) -> str:
    return cells.cluster.state.ranks[rank].trouble or ""


def test_idle_connections_and_few_descriptors_cost_no_rank(new) -> None:
    cells = new(nodes=4, provider=Local(machines=2), framework=False)
    before = pids(cells)
    machine = registry.find(cells.cluster.name).machines[0]
    where = (machine["nodes"][0]["addr"], machine["nodes"][0]["port"])
    few = agent_of(cells).num_fds() + 30
    with descriptors(agent_of(cells), few), contextlib.ExitStack() as stack:
        for _ in range(300):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(where)
        assert pids(cells) == before
        os.kill(before[0], signal.SIGKILL)
        until(cells, lambda: cells.cluster.state.ranks[0].pid not in (None, before[0]))
        after = pids(cells)
    assert after[0] != before[0]
    assert after[1:] == before[1:]
    assert (folder_of(cells) / "agent.log").stat().st_size < 10_000


def test_more_clients_than_there_may_be_are_sent_away(new) -> None:
    cells = new(nodes=1, framework=False)
    path = str(folder_of(cells) / "agent.sock")
    with contextlib.ExitStack() as stack:

        def come() -> socket.socket:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(path)
            return sock

        first = come()
        for _ in range(MOST_CLIENTS - 2):  # the notebook is one
            come()
        assert come().recv(1) == b""
        assert cells.ask("1") == [1]
        first.close()

        def is_served() -> bool:
            sock = come()
            sock.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                return sock.recv(1) != b""  # a sign of life, or nothing yet
            return True

        waiting.until(is_served)
        assert cells.ask("2") == [2]


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        (lambda cells: descriptors(agent_of(cells), 3), "Too many open files"),
        (lambda cells: descriptors(fork_server_of(cells), 3), "Too many open files"),
        (
            lambda cells: no_more_processes(fork_server_of(cells)),
            "Resource temporarily unavailable",
        ),
    ],
    ids=["no descriptors in the agent", "none in the fork server", "no process"],
)
def test_a_rank_for_which_there_is_no_process_comes_when_there_is_room(new, limit, why) -> None:
    cells = new(nodes=2, framework=False)
    before = pids(cells)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(limit(cells))
        except NoControlGroups:
            pytest.skip("the system's control groups cannot be changed here")
        os.kill(before[1], signal.SIGKILL)
        until(cells, lambda: "the system could not start its process" in trouble(cells, 1))
        assert why in trouble(cells, 1)
    after = pids(cells)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_rank_starts_where_few_files_may_be_open(new) -> None:
    cells = new(nodes=1, framework=False)
    with descriptors(fork_server_of(cells), 64):
        cells.cluster.restart()
        cells.run("import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
        assert cells.text() == "64\n"


def test_a_rank_for_which_no_process_comes_is_named(new) -> None:
    cells = new(nodes=2, framework=False)
    victim = pids(cells)[1]
    with descriptors(agent_of(cells), 3):
        os.kill(victim, signal.SIGKILL)
        until(cells, lambda: cells.cluster.state.ranks[1].phase is RankPhase.DEAD)
        with pytest.raises(sky.ClusterLost, match="rank 1 no longer starts, the system "):
            cells.run("pass")
    until(cells, lambda: cells.cluster.state.settled)
    cells.run("pass")
