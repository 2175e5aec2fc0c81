"""A computer that has got another name, as a laptop in another network; and one that is gone."""

from __future__ import annotations

import os
import socket
import time

import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import orphans, registry
from jupyter_sky.cluster.inventory.kernel_files import KernelFile
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.errors import SkyError
from jupyter_sky.providers import providers
from tests.notebook.conftest import Notebook

pytestmark = pytest.mark.usefixtures("own_registry")


def rename(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "another-name")


def test_a_cluster_stays_this_computers_when_that_gets_another_name(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.run("%sky up --cluster mine --nodes 1")
    rename(monkeypatch)
    other = notebook.run("%reload_ext jupyter_sky\n%config Sky.plugin = 'none'\n%sky status")
    assert "idle" in other and "elsewhere" not in other
    assert notebook.run("%%sky --cluster mine\n1 + 1")
    row = registry.find("mine")
    assert row and row.has_starter and row.was_started_here
    assert "nothing is left running" in notebook.run("%sky down mine")


def test_what_a_kernel_has_written_stays_its_own_when_the_computer_gets_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = KernelFile("k", "", time.time())
    registry.record("0000000a", "slow", "local", {"nodes": 1, "starter": processes.describe()})
    rename(monkeypatch)
    assert file.is_live and not file.is_elsewhere
    row = registry.with_id("0000000a")
    assert row and row.is_starting and row.was_started_here
    registry.remove("0000000a")


def leave_on(computer: str, days: float = 0.0) -> None:
    registry.record("0000000b", "old", "local", {"nodes": 1, "procs_per_node": None})
    machine = {"folder": "/none", "blobs": "/none", "pid": 1, "nodes": []}
    by = {"time": time.time() - days * 24 * 3600, "is_idle": True}
    registry.change(
        "0000000b", {"ends_by": by}, [{**machine, "computer": computer, "booted": "another"}]
    )


def test_a_cluster_on_a_computer_that_is_gone_can_be_forgotten(notebook: Notebook) -> None:
    leave_on("old-container")
    assert "elsewhere" in notebook.run("%sky status")
    for line in ("%sky attach old", "%%sky --cluster old\n1", "%sky down old"):
        with pytest.raises(SkyError, match="runs on old-container, .* if old-container is gone, "):
            notebook.run(line)
    assert notebook.run("%sky down --discard old").startswith("old: forgotten; ")
    assert "No cluster is running" in notebook.run("%sky status")


def test_a_cluster_that_ended_long_ago_on_a_computer_that_is_gone_is_forgotten() -> None:
    leave_on("old-container", days=6)
    orphans.forget_old()
    assert registry.find("old")
    registry.remove("0000000b")
    leave_on("old-container", days=8)
    orphans.forget_old()
    assert registry.find("old") is None


def test_who_adds_machines_on_a_computer_that_is_gone_keeps_none_for_ever() -> None:
    registry.record("0000000c", "train", "aws", {"nodes": 1})

    def may_grow(hours_ago: float) -> bool:
        since = time.time() - 3600 * hours_ago
        by = {"computer": "old-container", "pid": 1, "mark": "another 1", "since": since}
        registry.change("0000000c", {"grower": by})
        row = registry.with_id("0000000c")
        assert row
        return row.may_grow

    assert may_grow(hours_ago=1)
    assert not may_grow(hours_ago=4)
    registry.remove("0000000c")


def test_who_scales_a_cluster_on_another_computer_is_waited_for_but_not_for_ever() -> None:
    registry.record("0000000d", "queued", "slurm", {"nodes": 2})
    joining = {"nodes": []}

    def attach(minutes_ago: float) -> None:
        since = time.time() - 60 * minutes_ago
        # Another login node, which may have a process of the same number.
        by = {"computer": "login2", "pid": os.getpid(), "mark": "another 1", "since": since}
        registry.change("0000000d", {"scaler": by, "leaving": [joining]})
        row = registry.with_id("0000000d")
        assert row and not row.is_scaled_here
        Cluster.attach(row, providers()["slurm"], RuntimeEnv(life=None))

    with pytest.raises(SkyError, match="queued is being scaled by another notebook: wait for it"):
        attach(minutes_ago=1)
    with pytest.raises(SkyError, match="the entry of cluster queued"):  # it is looked at, then
        attach(minutes_ago=20)
    registry.remove("0000000d")
