"""Machines join a cluster over SSH, and leave it."""

from __future__ import annotations

from jupyter_sky.providers.ssh import SSH
from tests.cluster.test_scaling import assert_is_whole, prepare
from tests.lab import Lab


def hosts(names: str) -> SSH:
    import sys

    return SSH(names, python=sys.executable)


def test_machines_come_and_go(lab: Lab, start) -> None:
    cells = start("lab1,lab2")
    prepare(cells)
    cells.cluster.scale(4, hosts("lab1,lab2,lab3,lab4"))
    assert_is_whole(cells, 4, keep=[0, 1, None, None])
    assert [node.name for node in cells.cluster.state.nodes] == ["lab1", "lab2", "lab3", "lab4"]
    assert [len(lab.hosts[n].processes("jupyter_sky.node ")) for n in range(4)] == [1] * 4
    cells.cluster.scale(1)
    assert_is_whole(cells, 1, keep=[0])
    cells.cluster.scale(2, hosts("lab1,lab4"))
    assert_is_whole(cells, 2, keep=[0, None])
