"""Hosts that cannot be reached when their cluster is ended: nothing waits, nothing is left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control import shutdown
from jupyter_sky.cluster.inventory import owed_ends, probe, registry
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.provider import SSH
from tests.cluster.conftest import Cells
from tests.lab import Host, Lab
from tests.notebook.kernels import LiveNotebook
from tests.providers.ssh.conftest import cut, hang_up, opened_over_ssh
from tests.providers.ssh.test_broken_links import Followed, counting
from tests.waiting import PATIENCE, until


def out_of_reach(lab: Lab, host: Host) -> None:
    """Have a host hear and say nothing to this machine; the other hosts still reach it."""
    host.run("iptables", "-A", "INPUT", "-s", lab.address, "-j", "DROP")
    host.run("iptables", "-A", "OUTPUT", "-d", lab.address, "-j", "DROP")


def counting_without_end(start: Callable[..., Cells], hosts: str, tmp_path: Path) -> Cells:
    """Start a cluster on hosts, and a run on it that is seen to count."""
    cells = start(hosts, framework=False)
    followed = Followed(cells, counting(tmp_path / "never"), show=[1])
    followed.until(lambda: 3 in followed.numbers)
    return cells


def test_down_right_after_a_cut_is_remembered_and_done_when_the_host_answers(
    lab: Lab, start, tmp_path: Path
) -> None:
    cells = counting_without_end(start, "lab1,lab2", tmp_path)
    host = lab.hosts[1]
    with cut(host):
        said: list[object] = []
        assert cells.cluster.down(said.append) == ["lab2"]
        assert said[0] == "waiting for lab2, which does not answer, 19 s at most"
        assert registry.find(cells.cluster.name) is None
        [owed] = owed_ends.read()
        assert (owed.name, owed.hosts) == (cells.cluster.name, "lab2")
        assert not lab.hosts[0].processes("jupyter_sky")
        assert host.processes("jupyter_sky")
    until(lambda: not host.processes("jupyter_sky"))
    until(lambda: not owed_ends.read())


def test_hosts_whose_cluster_was_ended_elsewhere_are_not_said_to_be_silent(
    lab: Lab, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SIGN_WITHIN", PATIENCE)  # however busy the processors are
    cells = start("lab1,lab2", framework=False)
    attached(cells).cluster.down()
    until(lambda: not all(each.is_up for each in cells.cluster._controller.connections))
    said: list[object] = []
    assert cells.cluster.down(said.append) == []
    assert said == []


def test_scaling_says_for_which_host_that_leaves_it_waits(lab: Lab, start) -> None:
    cells = start("lab1,lab2", framework=False)
    host = lab.hosts[1]
    out_of_reach(lab, host)
    said: list[object] = []
    try:
        assert cells.cluster.scale(1, progress=said.append) == []
        until(lambda: not host.processes("jupyter_sky"))
    finally:
        host.speed_up()
    assert said == ["waiting for lab2, which does not answer, 19 s at most"]


def test_a_host_that_only_other_nodes_reach_is_told_by_them(
    lab: Lab, start, tmp_path: Path
) -> None:
    cells = counting_without_end(start, "lab1,lab2,lab3", tmp_path)
    host = lab.hosts[1]
    out_of_reach(lab, host)
    try:
        assert cells.cluster.down() == []
        until(lambda: not host.processes("jupyter_sky"))
    finally:
        host.speed_up()
    assert not owed_ends.read()


def test_an_agent_that_comes_back_to_a_cluster_that_was_ended_ends_as_well(
    lab: Lab, start, tmp_path: Path
) -> None:
    cells = counting_without_end(start, "lab1,lab2", tmp_path)
    host = lab.hosts[1]
    with cut(host):
        assert cells.cluster.down() == ["lab2"]
        # No notebook will ever reach it again, but it sees the machines of the others.
        out_of_reach(lab, host)
    try:
        until(lambda: not host.processes("jupyter_sky"))
        assert owed_ends.read()
    finally:
        host.speed_up()


@pytest.fixture
def alone(client: Path, tmp_path: Path) -> Iterator[LiveNotebook]:
    """A notebook with a registry of its own: no other process does what is owed there."""
    folder = tmp_path / "sky"
    with opened_over_ssh(client, tmp_path, JUPYTER_SKY_HOME=str(folder)) as made:
        yield made


def test_another_kernel_does_what_is_owed(lab: Lab, alone: LiveNotebook, tmp_path: Path) -> None:
    notebook = alone
    stop = tmp_path / "never"
    notebook.succeed("%sky up --hosts lab1,lab2 --plugin none")
    cell = notebook.start(f"%%sky --background\n{counting(stop)}")
    notebook.finish(cell)
    host = lab.hosts[1]
    # What the other node was about to tell it would still come, from a socket of the dead.
    host.block(lab.hosts[0])
    try:
        with cut(host):
            down = notebook.succeed("%sky down")
            assert "waiting for lab2, which does not answer" in down.shown[0]
            said = down.stdout
            assert "lab2 could not be reached: what is left there is ended when it answers" in said
            assert "within 7 d without a notebook" in said
            # Not the cluster: of one that is up, nodes are ended too.
            told = r"its node was ended .* ago, but lab2 could not be reached so far"
            assert re.search(told, notebook.succeed("%sky status").stdout)
            assert "lab2 could not be reached so far" in notebook.succeed("%sky gc").stdout
            notebook.restart()
            host.restart_sshd()  # so that what the first kernel had sent is lost, too
        notebook.succeed("%load_ext jupyter_sky")
        assert host.processes("jupyter_sky")
        said = notebook.succeed("%sky gc").stdout
        assert re.search("ended what was left of n-.* on lab2", said)
        assert not host.processes("jupyter_sky")
        assert "could not be told" not in notebook.succeed("%sky status").stdout
    finally:
        host.speed_up()


def test_who_attaches_to_a_run_that_only_some_hosts_heard_of_is_told(lab: Lab, start) -> None:
    cells = start("lab1,lab2", framework=False)
    with cut(lab.hosts[1]):
        cells.start("begun = True\nimport time\nprint('here', flush=True)\ntime.sleep(600)")
        until(lambda: "here" in cells.cluster.snapshot()["output"]["text"])
        cells.cluster.close()  # as the end of its kernel does
        lab.hosts[1].restart_sshd()  # so that what is on the way is lost
    again = attached(cells)
    unseen = again.cluster.pop_unseen_run()
    assert unseen is not None
    with pytest.raises(sky.SkyError, match="ended before it had told rank 1: it was stopped"):
        unseen.follow()
        unseen.values()
    assert again.ask("'begun' in globals()") == [True, False]
    again.cluster.down()


def test_a_cell_right_after_attaching_to_a_run_that_is_over(lab: Lab, start) -> None:
    cells = start("lab1,lab2", framework=False)
    cells.run("import time")
    for number in range(10):
        run = cells.start(f"time.sleep({0.02 * number})\nn = {number}", values={1: ["n"]})
        assert run.told.wait(60)
        cells.cluster.close()
        cells = attached(cells)
        if unseen := cells.cluster.pop_unseen_run():
            unseen.follow()
            assert unseen.values() == {1: {"n": number}}
        assert cells.ask("n") == [number, number]
    cells.cluster.down()


def test_a_host_that_takes_its_time_to_let_in_is_not_said_to_be_unreachable(
    lab: Lab, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "ANSWER_WITHIN", 0.01)  # a login from far away takes seconds
    cells = start("lab1,lab2", framework=False)
    row = registry.find(cells.cluster.name)
    assert row is not None
    hang_up(lab)
    assert [each.phase for each in probe.probe([row], {"ssh": SSH()})] == ["idle"]
    with cut(lab.hosts[1]):
        assert [each.phase for each in probe.probe([row], {"ssh": SSH()})] == ["unreachable"]


def attached(cells: Cells) -> Cells:
    """Take up a cluster as another kernel does."""
    row = registry.find(cells.cluster.name)
    assert row is not None
    _, runtime_env = assemble(ClusterSpec(name=row.name), [])
    cluster = Cluster.attach(row, SSH(), runtime_env)
    assert cluster is not None
    return Cells(cluster)
