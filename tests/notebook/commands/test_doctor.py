"""``%sky doctor`` and ``%sky gc``: what they see, and what they never touch."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_sky.cluster.inventory import orphans, registry, stops
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.cluster.inventory.storage.row import START_WITHIN
from jupyter_sky.notebook.commands.doctor import Finding, examine
from jupyter_sky.notebook.kernel import cluster_name
from jupyter_sky.paths import home, runtime
from jupyter_sky.providers.node_defaults import SHARED_MEMORY
from tests.node_processes import crowded, processes_of_node
from tests.notebook.conftest import Notebook

LONG_AGO = time.time() - 2 * START_WITHIN
HOUR = 3600.0
SPEC = {"nodes": 1, "procs_per_node": None}


def findings() -> dict[str, Finding]:
    return dict(examine())


def mine() -> list[str]:
    """Return the names of dead clusters; other tests of this machine may have left some too."""
    return [each.name for each in orphans.find() if each.name]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another home for the registry and for folders of agents, short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sky-") as folder:
        monkeypatch.setenv("JUPYTER_SKY_HOME", folder)
        yield Path(folder)


# %sky doctor


def test_doctor_tells_of_everything_line_by_line(notebook: Notebook) -> None:
    *lines, summary = notebook.run("%sky doctor").splitlines()
    names = ["Python", "jupyter_sky", "cloudpickle", "torch", "GPUs", "shared memory"]
    names += ["open files", "disk", "registry", "loopback", "leftovers"]
    assert [line[5:20].strip() for line in lines] == names
    assert all(line.startswith(("ok   ", "fix  ")) for line in lines)
    fixes = [line for line in lines if line.startswith("fix")]
    assert summary == (f"{len(fixes)} of 11 need your attention" if fixes else "all is well")


def test_what_is_well_needs_no_fix(notebook: Notebook) -> None:
    found = findings()
    for name in ("Python", "jupyter_sky", "cloudpickle", "registry", "loopback"):
        assert found[name].fix == "", name


def test_too_few_open_files_are_named_with_the_fix() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        found = findings()["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found == Finding("512 at most", "`ulimit -n 4096` in the shell that starts Jupyter.")


def test_nothing_is_asked_for_that_windows_lacks(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_folder(runtime() / "0badc0de-0")
    checks = examine()
    assert next(name for name, _ in checks if name == "shared memory")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        assert next(checks) == ("open files", Finding("any number"))
    monkeypatch.delattr(os, "getuid")
    monkeypatch.delattr(psutil.Process, "uids")
    assert orphans.find() == []


def test_a_broken_registry_is_named_with_the_fix(elsewhere: Path) -> None:
    (elsewhere / "registry.sqlite").write_bytes(b"no database" * 1000)
    found = findings()
    file = elsewhere / "registry.sqlite"
    assert found["registry"].found == f"{file} cannot be used (file is not a database)"
    assert found["registry"].fix.startswith("move it away, a new one is made")
    assert found["leftovers"].found == "cannot be checked"


def test_a_home_that_others_can_change_is_named(elsewhere: Path) -> None:
    elsewhere.chmod(0o777)
    found = findings()
    assert "set JUPYTER_SKY_HOME to a folder of yours" in found["disk"].fix
    assert found["loopback"].fix == ""


def test_gpus_and_torch_are_those_of_this_machine() -> None:
    torch = pytest.importorskip("torch")
    found = findings()
    assert found["torch"].found.startswith(importlib.metadata.version("torch"))
    count = torch.cuda.device_count()
    if torch.version.cuda or not Path("/dev/nvidia0").exists():
        assert found["GPUs"].found.startswith(f"{count} × " if count else "none")
        assert found["torch"].fix == ""


# %sky gc


def kill_agent() -> list[psutil.Process]:
    """Kill an agent so that everything else of its cluster stays; return what stays."""
    agent = psutil.Process(registry.rows()[0].machines[0]["pid"])
    _, *others = processes_of_node(agent)
    for process in others:
        process.suspend()
    agent.kill()
    wait_for_end(agent)
    return others


def wait_for_end(process: psutil.Process) -> None:
    """Wait until a process has ended, whether or not its parent takes note of it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


def test_gc_ends_and_removes_what_a_dead_cluster_left(notebook: Notebook, alone: None) -> None:
    notebook.run(
        "%%sky --nodes 2 --cluster dead\n"
        "import subprocess\n"
        "helper = subprocess.Popen(['sleep', '600'], start_new_session=True)"
    )
    [machine] = registry.rows()[0].machines
    others = kill_agent()
    assert len(others) == 5  # the fork server, two ranks, and what each of them started
    assert "dead: its entry in the registry, 5 processes" in notebook.run("%sky doctor")
    said = notebook.run("%sky gc")
    assert "removed dead: its entry in the registry, 5 processes, " in said
    for process in others:
        wait_for_end(process)
    assert not Path(machine["folder"]).exists() and not Path(machine["blobs"]).exists()
    assert registry.find("dead") is None
    assert mine() == []
    assert "dead" not in notebook.run("%sky gc")


def test_gc_removes_wheels_that_nobody_uses(notebook: Notebook, elsewhere: Path) -> None:
    for name, age in (("ancient", 30 * 24 * HOUR), ("old", 2 * HOUR), ("new", 0)):
        wheel = home() / "wheels" / name / "made-1.0-py3-none-any.whl"
        wheel.parent.mkdir(parents=True)
        wheel.touch()
        os.utime(wheel.parent, (time.time() - age,) * 2)

    def left() -> set[str]:
        return {each.name for each in (home() / "wheels").iterdir()}

    assert "removed 1 unused wheel that" in notebook.run("%sky gc")
    assert left() == {"old", "new"}
    # Nodes that join a cluster may be sent what was made for it.
    registry.record("0000beef", "up", "local", {**SPEC, "starter": processes.describe()})
    assert "wheel" not in notebook.run("%sky gc --unused-for 1h")
    registry.remove("0000beef")
    assert "removed 1 unused wheel that" in notebook.run("%sky gc --unused-for 1h")
    assert left() == {"new"}


def test_gc_leaves_live_clusters_alone(notebook: Notebook) -> None:
    notebook.run("%%sky --nodes 2\nx = 1")
    [machine] = registry.rows()[0].machines
    notebook.run("%sky gc")
    assert Path(machine["folder"]).exists() and Path(machine["blobs"]).exists()
    assert notebook.run("%%sky\nprint(x)") == "1\n"


def test_gc_leaves_live_clusters_of_other_homes_alone(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.run("%%sky --nodes 1\nx = 1")
    [machine] = registry.rows()[0].machines
    for folder in (machine["folder"], machine["blobs"]):
        os.utime(folder, (LONG_AGO, LONG_AGO))
    with monkeypatch.context() as patch:
        patch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
        notebook.run("%sky gc")
    assert Path(machine["folder"]).exists() and Path(machine["blobs"]).exists()
    assert notebook.run("%%sky\nprint(x)") == "1\n"


def test_nobody_logs_in_where_machines_are_stopped(notebook: Notebook, elsewhere: Path) -> None:
    """Their addresses may be a stranger's by now."""
    name = cluster_name(notebook.shell)
    registry.record("0000d15c", name, "aws", SPEC)
    registry.record_machines("0000d15c", [{"host": "root@127.0.0.1:1", "nodes": [{"ranks": [0]}]}])
    stops.record_stop("0000d15c", time.time(), stops.DiskCost(0.5))
    said = notebook.run("%sky gc")
    assert f"kept: {name}, which is stopped" in said
    assert "127.0.0.1" not in said
    said = notebook.run("%sky doctor")
    assert f"{name} is stopped, so its nodes are not checked: `%sky start {name}` starts" in said
    assert "127.0.0.1" not in said


def test_gc_forgets_a_cluster_that_never_came_up(elsewhere: Path) -> None:
    registry.record("00000001", "tried", "local", SPEC)
    assert mine() == []  # it may be about to come
    with registry.opened() as database:
        database.execute("UPDATE clusters SET created = ?", (LONG_AGO,))
    assert mine() == ["tried"]


def test_gc_leaves_what_is_not_provably_of_this_computer(elsewhere: Path) -> None:
    registry.record("00000001", "abroad", "local", SPEC)
    machine = {"folder": "/nowhere", "blobs": "/nowhere", "pid": 1, "nodes": []}
    registry.record_machines("00000001", [{**machine, "computer": "another"}])
    registry.record("00000002", "paid", "aws", SPEC)
    registry.record_machines("00000002", [machine])
    registry.record("00000003", "ended", "local", SPEC)
    registry.record_machines("00000003", [{**machine, "computer": os.uname().nodename}])
    assert mine() == ["ended"]


def old_folder(path: Path) -> Path:
    path.mkdir()
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_folders_without_an_agent_are_left_overs_when_they_are_old_and_ours(
    elsewhere: Path, alone: None
) -> None:
    unique = f"{os.getpid() % 10**8:08d}"
    ours = [
        old_folder(runtime() / f"{unique}-0"),
        old_folder(SHARED_MEMORY / f"jupyter-sky-{unique}-0"),
    ]
    others = [
        old_folder(runtime() / "notes"),
        old_folder(SHARED_MEMORY / f"jupyter-sky-{unique}"),
        runtime() / "11111111-0",
    ]
    others[-1].mkdir()
    try:
        found = {each.id: each for each in orphans.find()}
        assert found[unique].folders == ours
        assert not {path for each in found.values() for path in each.folders} & set(others)
        found[unique].remove()
        assert [path.exists() for path in ours] == [False, False]
    finally:
        others[1].rmdir()


def test_a_link_to_something_else_is_not_followed(elsewhere: Path) -> None:
    precious = elsewhere / "precious"
    precious.mkdir()
    (runtime() / "22222222-0").symlink_to(precious)
    assert "22222222" not in {each.id for each in orphans.find()}


def test_an_agent_that_has_not_accepted_others_for_long_is_no_left_over(elsewhere: Path) -> None:
    folder = old_folder(runtime() / "33333333-0")
    with crowded(folder):
        os.utime(folder, (LONG_AGO, LONG_AGO))
        assert "33333333" not in {each.id for each in orphans.find()}
    assert "33333333" in {each.id for each in orphans.find()}


def test_home_is_the_one_that_was_chosen(elsewhere: Path) -> None:
    assert str(home()) in findings()["registry"].found
