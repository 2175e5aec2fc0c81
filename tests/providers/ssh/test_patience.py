"""Nodes that nobody reaches for a while: they are waited for, and nothing of them is lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.network import connection
from jupyter_sky.cluster.network.requests.pending import LINK_WITHIN
from jupyter_sky.errors import NoConnection
from tests.cluster.conftest import Cells
from tests.lab import Host, Lab
from tests.providers.ssh.conftest import cut
from tests.providers.ssh.test_broken_links import Followed
from tests.waiting import until


@contextlib.contextmanager
def frozen(host: Host) -> Iterator[None]:
    agents = host.processes("jupyter_sky.node /")
    for agent in agents:
        agent.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for agent in agents:
            agent.send_signal(signal.SIGCONT)


def note(cells: Cells) -> str:
    return cells.cluster.snapshot()["cluster"]["note"]


@pytest.mark.parametrize("trouble", [cut, frozen])
def test_an_idle_cluster_waits_and_the_next_cell_goes_on_with_its_variables(
    lab: Lab, start, trouble
) -> None:
    cells = start("lab1,lab2,lab3", framework=False)
    cells.run("kept = 7")
    with trouble(lab.hosts[1]):
        until(lambda: "lab2 cannot be reached since " in note(cells))
        unheard = "there is no connection to lab2 since .*: run this again when it has"
        with pytest.raises(NoConnection, match=f"^{unheard}"):
            cells.cluster.log(1, tail=1)
        # Not of the other nodes' ranks, either.
        with pytest.raises(NoConnection, match=f"^no rank was restarted: {unheard}"):
            cells.cluster.restart()
        stopped = Followed(cells, "kept = 0")
        stopped.until(lambda: stopped.notices)
        stopped.run.stop()
        with pytest.raises(KeyboardInterrupt):
            stopped.values()
        followed = Followed(cells, "kept += 1", values={1: ["kept"]})
        # It says at once what it waits for.
        followed.until(lambda: followed.notices)
        assert "lab2 cannot be reached since " in followed.notices[0]
        assert "by the other nodes either: waiting for it" in followed.notices[0]
    assert followed.values() == {1: {"kept": 8}}
    assert "connected to lab2 again after" in followed.notices[-1]
    assert cells.ask("kept") == [8, 8, 8]
    until(lambda: note(cells) == "")


def test_a_run_ends_soon_and_the_next_cell_finds_all_variables(lab: Lab, start) -> None:
    cells = start("lab1,lab2")
    anew: list[str] = []  # why processes of ranks ended, if any did

    def look() -> None:
        anew.extend(rank.trouble for rank in cells.cluster.state.ranks if rank.trouble)

    cells.cluster.listen(look)
    cells.run("import torch, torch.distributed as dist\nkept = dist.get_rank() + 5")
    code = "print('here', flush=True)\nwhile True: dist.all_reduce(torch.ones(1))"
    followed = Followed(cells, code)
    followed.until(lambda: followed.printed)
    with cut(lab.hosts[1]):
        with pytest.raises(NoConnection, match="rank 1 on lab2 could not be reached .*--patience"):
            followed.values()
        waiting = Followed(cells, "x = torch.ones(1)\ndist.all_reduce(x)", values={0: ["kept"]})
        waiting.until(lambda: waiting.notices)
        assert "lab2 cannot be reached since " in waiting.notices[0]
    try:
        assert waiting.values() == {0: {"kept": 5}}
    finally:
        assert anew == []
    assert cells.ask("(kept, x.item())") == [(5, 2.0), (6, 2.0)]


def test_patience_comes_to_an_end(lab: Lab, start) -> None:
    cells = start("lab1,lab2", framework=False, patience=1.0)
    cells.run("pass")
    with cut(lab.hosts[1]):
        followed = Followed(cells, "pass")
        gone = "the agent of rank 1 on lab2 is gone: neither this notebook nor the other nodes"
        with pytest.raises(sky.ClusterLost, match=gone):
            followed.values()


def test_nodes_that_do_not_reach_each_other_do_not_wait_for_ever(lab: Lab, start) -> None:
    cells = start("lab1,lab2", patience=1.0)
    cells.run("import torch, torch.distributed as dist\nkept = dist.get_rank() + 5")
    code = "print('here', flush=True)\nwhile True: dist.all_reduce(torch.ones(1))"
    followed = Followed(cells, code)
    followed.until(lambda: followed.printed)
    lab.hosts[0].block(lab.hosts[1])
    try:
        # The notebook reaches both of them.
        with pytest.raises(NoConnection, match="lab1 and lab2 do not reach each other for 1 s"):
            followed.values()
        assert "reach" in followed.notices[0]
    finally:
        lab.hosts[0].speed_up()
    assert cells.ask("kept") == [5, 6]
    assert cells.ask("dist.get_world_size()") == [2, 2]


def test_a_node_that_stands_still_for_a_while_does_not_end_the_start(
    lab: Lab, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SILENCE", 1.0)
    resumed: list[threading.Timer] = []

    def stand_still(said: object) -> None:
        if str(said) == "checking the network":
            [agent] = lab.hosts[1].processes("jupyter_sky.node /")
            agent.suspend()
            resumed.append(threading.Timer(LINK_WITHIN + 3.0, agent.resume))
            resumed[0].start()

    try:
        cells = start("lab1,lab2", framework=False, progress=stand_still)
    finally:
        resumed[0].join()
    assert cells.ask("1 + 1") == [2, 2]
