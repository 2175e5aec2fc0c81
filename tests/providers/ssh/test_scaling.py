"""Machines join a cluster over SSH, leave it, and take the place of others that are lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.cluster.inventory import registry, row_updates
from jupyter_sky.providers.ssh import provider
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.targets import parse
from jupyter_sky.providers.ssh.provider import SSH
from jupyter_sky.transport import event_loop
from tests.cluster.control.test_scaling import assert_is_whole, prepare
from tests.lab import Lab
from tests.notebook.kernels import LiveNotebook
from tests.providers.ssh.conftest import impatient
from tests.waiting import until


def hosts(names: str) -> SSH:
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


def test_a_stop_waits_until_it_is_recorded_which_agents_start(
    lab: Lab, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, steps = start("lab1"), list[str]()
    record, undo = row_updates.change, provider._undo
    recording, go_on = threading.Event(), threading.Event()

    def record_late(identity: str, changes: Mapping[str, object]) -> None:
        if changes.get("leaving"):
            recording.set()
            assert go_on.wait(60)
            steps.append("recorded")
        record(identity, changes)

    async def note_undo(*agents: Any) -> None:
        steps.append("removed")
        await undo(*agents)

    monkeypatch.setattr(row_updates, "change", record_late)
    monkeypatch.setattr(provider, "_undo", note_undo)
    lab2 = hosts("lab1,lab2")
    scaling = event_loop.submit(cells.cluster._scheduler.scale(2, lab2, lambda text: None))
    assert recording.wait(60)
    scaling.cancel()
    for _ in range(100):  # what is stopped may begin to remove agents
        event_loop.wait(asyncio.sleep(0))
    go_on.set()
    # Or other notebooks would wait for one that scales it, as long as this one is there.
    until(
        lambda: (
            (row := registry.find(cells.cluster.name)) and "removed" in steps and not row.leaving
        )
    )
    assert steps == ["recorded", "removed"]


def test_hosts_that_cannot_be_had_change_nothing(lab: Lab, client: Path, start) -> None:
    cells = start("lab1,lab2")
    prepare(cells)
    lab.hosts[3].cut()
    try:
        refused = pytest.raises(sky.SkyError, match="stays with 2 nodes: lab4: ")
        with refused, impatient(client, lab.hosts[3]):
            cells.cluster.scale(4, hosts("lab1,lab2,lab3,lab4"))
    finally:
        lab.hosts[3].mend()
    assert_is_whole(cells, 2, keep=[0, 1])
    assert not lab.hosts[2].processes("jupyter_sky.node ")
    with pytest.raises(sky.UsageError, match="3 nodes were asked for, and 2 hosts are named"):
        cells.cluster.scale(3, hosts("lab1,lab2"))
    with pytest.raises(sky.UsageError, match="name more with `--hosts`"):
        cells.cluster.scale(3)


def test_the_next_host_takes_the_place_of_one_that_is_lost(lab: Lab, start) -> None:
    cells = start("lab1,lab2,lab3", nodes=2, replace=True)
    prepare(cells)
    for process in lab.hosts[1].processes("jupyter_sky.node "):
        process.kill()
    with contextlib.suppress(RankLost):
        cells.run("pass")
    assert_is_whole(cells, 2, keep=[0, None])
    assert [node.name for node in cells.cluster.state.nodes] == ["lab1", "lab3"]


def test_nobody_waits_for_a_lost_host_where_another_one_answers(lab: Lab, client: Path) -> None:
    config = client / "config"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"HostName 127.0.0.1\n  Port {silent.getsockname()[1]}\n  ConnectTimeout 600"
        config.write_text(f"Host lost\n  {place}\n{config.read_text()}")
        another, lost = targets = parse(["lab3", "lost"])
        asked = provider._answering(targets, 1, lambda text: None)
        assert asyncio.run(asyncio.wait_for(asked, 120)) == [another]
    pool.get(lost).close()


def test_the_host_itself_comes_back_where_there_is_no_other(lab: Lab, start) -> None:
    cells = start("lab1,lab2", replace=True)
    prepare(cells)
    for process in lab.hosts[1].processes("jupyter_sky.node "):
        process.kill()
    with contextlib.suppress(RankLost):
        cells.run("pass")
    assert_is_whole(cells, 2, keep=[0, None])


def test_hosts_that_join_leave_files_as_ranks_have_saved_them(
    lab: Lab, notebook: LiveNotebook, tmp_path: Path
) -> None:
    saved = tmp_path / "data" / "saved"
    saved.parent.mkdir()
    saved.write_text("by the notebook")
    cell = "%%sky --cluster saves --hosts {} --plugin none --include data\n"
    cell += "open('data/saved', 'w').write({!r})"
    # Where another cluster of that name was, its files are replaced as at a start.
    notebook.succeed(cell.format("lab3", "by another cluster"))
    notebook.succeed("%sky down saves")
    first, second = (host.home / "jupyter-sky" / "saves" for host in lab.hosts[:2])
    second.parent.mkdir(exist_ok=True)
    second.symlink_to(first)  # as in a home that they share
    try:
        notebook.succeed(cell.format("lab1", "by a rank"))
        notebook.succeed("%sky scale 3 --hosts lab1,lab2,lab3")
        notebook.succeed("%%sky --gather found\nfound = open('data/saved').read()")
        assert notebook.value("found") == ["by a rank", "by a rank", "by the notebook"]
    finally:
        notebook.run("%sky down saves")
        second.unlink()
