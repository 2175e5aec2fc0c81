"""A registry that another version has written, or half of it: what the commands say of it."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError
from tests.notebook.conftest import Notebook

pytestmark = pytest.mark.usefixtures("own_registry")

NODE = {"node": 0, "addr": "127.0.0.1", "interface": "lo", "ranks": [0]}
NODE |= {"accelerators": 0, "shared_accelerators": False, "gpu": None, "name": "gpu1"}
HOST = {"host": "gpu1", "folder": "/a", "blobs": "/b", "python": "python3", "code": "/c"}


def record(name: str, provider: str, machines: Any, spec: str = "") -> None:
    row = {"nodes": 1, "procs_per_node": None}
    registry.record(f"{len(registry.read()):08x}", name, provider, row)
    with registry.opened() as database:
        database.execute(
            "UPDATE clusters SET machines = ?, spec = coalesce(?, spec) WHERE name = ?",
            (json.dumps(machines), spec or None, name),
        )


@pytest.mark.parametrize(
    ("provider", "machines", "spec"),
    [
        ("ssh", [{**HOST, "nodes": [NODE], "relay": "new"}], ""),
        ("ssh", [{**HOST, "nodes": [{**NODE, "slots": 3}]}], ""),
        ("local", [{"nodes": [NODE]}], ""),
        ("local", [{"nodes": [{}]}], ""),
        ("local", [], '{"nodes": 1, "starter": {"computer": 5}}'),
        ("local", [], '{"nodes"'),
    ],
    ids=["newer", "newer node", "older", "half", "process", "cut off"],
)
def test_a_cluster_of_another_version_is_shown_and_can_be_removed(
    notebook: Notebook, provider: str, machines: Any, spec: str
) -> None:
    record("theirs", provider, machines, spec)
    record("ours", "local", [])
    shown = notebook.run("%sky status").splitlines()
    [theirs] = [line for line in shown if line.split()[:1] == ["theirs"]]
    assert "unknown" in theirs and "`%sky down theirs` ends it" in theirs
    assert any(line.split()[:1] == ["ours"] for line in shown)
    for line in ("%sky attach theirs", "%%sky --cluster theirs\n1"):
        with pytest.raises(SkyError, match="the entry of cluster theirs in the registry cannot be"):
            notebook.run(line)
    assert "removed from the registry" in notebook.run("%sky down theirs")
    assert "theirs" not in notebook.run("%sky status")
    registry.remove("00000001")


@pytest.mark.parametrize("machine", ['{"nodes"', '{"nodes": 5}', '{"nodes": [{}]}', "[]"])
def test_what_is_owed_to_a_machine_of_another_version_is_left_to_that(
    notebook: Notebook, machine: str, alone: None
) -> None:
    row = ("00000000", "theirs", "ssh", machine, 1.0, 9e12)
    with registry.opened() as database:
        database.execute(
            "INSERT INTO owed_ends (cluster, name, provider, machine, since, until) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            row,
        )
    assert "no cluster is running" in notebook.run("%sky status").lower()
    assert notebook.run("%sky gc")


def test_a_cluster_that_begins_while_others_are_asked_ends_no_table(
    notebook: Notebook, tmp_path: Path
) -> None:
    machine = {"folder": str(tmp_path), "blobs": str(tmp_path / "blobs"), "pid": 0}
    machine |= {"computer": socket.gethostname(), "nodes": [NODE]}
    record("silent", "local", [machine])
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "agent.sock"))
        agent.listen()

        def begin() -> None:
            with agent.accept()[0]:
                record("new", "local", [])
                table.wait()

        table = threading.Event()
        thread = threading.Thread(target=begin)
        thread.start()
        try:
            assert "silent" in notebook.run("%sky status")
        finally:
            table.set()
            thread.join()
    assert "new" in notebook.run("%sky status")
    for identity in ("00000000", "00000001"):
        registry.remove(identity)
