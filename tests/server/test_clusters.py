"""What the server answers of clusters: those of live kernels, of dead ones, and of neither."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry, row_updates, stops
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.notebook.panel.strip import MIME
from jupyter_sky.paths import home
from jupyter_sky.server import actions, cluster_list
from jupyter_sky.server.actions import ClusterActions
from jupyter_sky.server.cluster_list import ServerKernels
from jupyter_sky.server.kernel_reports import KernelReports
from jupyter_sky.server.schema import ClusterStatus, Entry
from tests.notebook.kernels import Cell
from tests.notebook.panel import samples
from tests.server.jupyter import Kernel, Server
from tests.waiting import until

Open = Callable[[str], Kernel]


def test_a_cluster_is_there_with_its_notebook_while_the_cell_is_busy(
    server: Server, opened: Open
) -> None:
    kernel = opened("train.ipynb")
    kernel.run("%%sky --nodes 2 --cluster busy --idle-timeout 30m\nx = 1")
    cell = kernel.start("%%sky\nprint('epoch 1', flush=True)\nimport time\ntime.sleep(600)")
    entry = server.until(
        "busy",
        lambda entry: (
            entry["state"] == "running" and any(told["busy"] for told in entry["kernels"])
        ),
    )
    [told] = entry["kernels"]
    assert told["id"] == kernel.id
    assert told["path"] == told["notebook"] == "train.ipynb"
    assert entry["line"] == "%%sky --nodes 2 --cluster busy --plugin none --idle-timeout 30m"
    assert entry["idle"] == {"timeout": 1800.0, "left": 1800.0, "keeps_disks": False}
    assert (entry["provider"], entry["nodes"], entry["note"]) == ("local", 2, "")
    shown = server.until("busy", lambda entry: "epoch 1" in entry["snapshot"]["output"]["text"])
    assert [rank["phase"] for rank in shown["snapshot"]["ranks"]] == ["running", "running"]
    asleep = "busy: no rank waits for another: ranks 0-1 are at `time.sleep(600)` (cell ["
    said = until(lambda: _where(server, entry, asleep))
    # The strip shows it too: the kernel was asked, which waits for the run.
    server.until("busy", lambda entry: f"busy: {entry['snapshot']['run']['where']}" == said)
    stopped = server.act(entry, "interrupt", {"run": None})
    assert stopped.json == {"said": "busy: stopping"}
    assert "KeyboardInterrupt" in kernel.finish(cell).traceback
    entry = server.until("busy", lambda entry: entry["state"] == "ready")
    assert entry["snapshot"]["run"]["state"] == "interrupted"
    server.until("busy", lambda entry: 0 < entry["idle"]["left"] < 1800)


def _where(server: Server, entry: dict[str, Any], text: str) -> str:
    """What is said of where ranks are, once it has a text: they get there one after the other."""
    said = str(server.act(entry, "where").json["said"])
    return said if text in said else ""


def run_of(cell: Cell) -> str:
    """The id of the run that the strip of a cell shows."""
    return str(cell.strips[0][MIME]["snapshot"]["run"]["id"])


def test_a_run_that_waits_is_stopped_alone(server: Server, opened: Open) -> None:
    first, second = opened("first.ipynb"), opened("second.ipynb")
    first.run("%%sky --nodes 1 --cluster both\npass")
    second.run("%sky attach both")
    runs = first.start("%%sky\nprint('on', flush=True)\nimport time\ntime.sleep(600)")
    first.until(runs, lambda cell: "on" in cell.stdout)
    waits = second.start("%%sky\nprint('begun')")
    second.until(waits, lambda cell: "this one begins when that is over" in str(cell.shown))
    entry = server.until("both", lambda entry: len(entry["kernels"]) == 2)
    stopped = server.act(entry, "interrupt", {"run": run_of(waits)})
    assert stopped.json == {"said": "both: stopping"}
    assert "was stopped before it began" in second.finish(waits).traceback
    assert server.clusters()["both"]["state"] == "running"
    stopped = server.act(entry, "interrupt", {"run": run_of(runs)})
    assert stopped.json == {"said": "both: stopping"}
    assert "KeyboardInterrupt" in first.finish(runs).traceback


def test_one_run_of_a_cluster_of_no_notebook_is_stopped(server: Server, alone: Cluster) -> None:
    code = "print('on', flush=True)\nimport time\ntime.sleep(600)"
    run = alone.run(Task((0, 1), code=code))
    run.begin()
    entry = server.until(alone.name, lambda entry: entry["state"] == "running")
    refused = server.act(entry, "interrupt", {"run": "0ddba11"})
    assert (refused.status, refused.message) == (
        409,
        f"{alone.name}: that run is over, or waits in another notebook: stop it there.",
    )
    assert server.act(entry, "interrupt", {"run": "--all"}).status == 400
    assert not run.finished
    assert server.act(entry, "interrupt", {"run": run.id}).json == {
        "said": f"{alone.name}: stopping"
    }
    run.follow()
    with pytest.raises(KeyboardInterrupt):
        run.check()


def test_a_cluster_of_no_notebook(server: Server, alone: Cluster) -> None:
    entry = server.until(alone.name, lambda entry: entry["state"] == "ready")
    assert (entry["kernels"], entry["snapshot"], entry["line"]) == ([], None, None)
    assert server.act(entry, "interrupt", {"run": None}).json == {
        "said": f"{alone.name}: nothing is running"
    }
    # Only a kernel knows what was used, and looks.
    for path in ("history", "variables"):
        answer = server.sky(f"clusters/{entry['id']}/{path}")
        assert answer.status == 409
        assert answer.message == "no notebook is connected to this cluster: attach it first."
    assert server.act(entry, "restart", {"ranks": [1]}).json == {
        "said": f"{alone.name}: rank 1 restarted with an empty namespace"
    }
    # Local nodes cost nothing: there is no use in stopping them.
    place = f"clusters/{entry['id']}"
    assert not entry["stoppable"]
    for answer in (server.sky(f"{place}/stop"), server.act(entry, "stop")):
        assert answer.message.startswith("local nodes are not stopped. It costs nothing")
    assert server.act(entry, "start").message.startswith("start cannot be read: ")
    said = server.act(entry, "start", {"max_price": 1.5}).message
    assert said.startswith("local nodes are not stopped. It costs nothing")
    assert server.sky(f"{place}/down").status == 405
    assert server.act(entry, "down").json == {
        "said": f"{alone.name}: ended; nothing is left running"
    }
    assert alone.name not in server.clusters()
    assert server.act(entry, "down").message == "that cluster no longer exists."


def test_what_a_page_asks_of_a_cluster(server: Server, opened: Open) -> None:
    kernel = opened("asked.ipynb")
    kernel.run("%%sky --nodes 2 --cluster asked\nshared = 1")
    entry = server.until("asked", lambda entry: entry["kernels"])
    place = f"clusters/{entry['id']}"
    variables = server.sky(f"{place}/variables").json
    assert [row["cells"][:2] for row in variables["rows"]] == [["shared", "int"]]
    history = until(lambda: _measured(server, place))
    assert [node["node"] for node in history["nodes"]] == [0, 1]
    more = server.sky(f"{place}/history?since={history['at']}").json
    assert more["at"] >= history["at"]
    assert all(len(node["times"]) < 100 for node in more["nodes"])
    assert "nothing is running" in server.act(entry, "profile").message
    assert server.sky(f"{place}/history?since=-1").status == 400
    assert server.sky(f"{place}/history?since=x").message.startswith("since is a whole number from")
    assert server.sky(f"{place}/profile").status == 405
    assert server.sky(f"{place}/variables", {}).status == 405
    # A question that could not be answered is no trouble of the cluster's.
    assert server.clusters()["asked"]["note"] == ""
    kernel.run("%sky down asked")


def _measured(server: Server, place: str) -> Any:
    history = server.sky(f"{place}/history").json
    return history if len(history["nodes"]) == 2 else None


def test_a_cluster_whose_kernel_was_killed(server: Server, opened: Open) -> None:
    kernel = opened("killed.ipynb")
    kernel.run("%%sky --nodes 2 --cluster orphan\nprint('first words')")
    server.until("orphan", lambda entry: entry["snapshot"] and entry["snapshot"]["output"]["text"])
    os.kill(kernel.pid, signal.SIGKILL)
    entry = server.until("orphan", lambda entry: not entry["kernels"])
    assert entry["state"] == "ready"
    assert entry["snapshot"]["output"]["text"] == "first words\n"
    assert entry["note"].startswith("The kernel of killed.ipynb has ended; what is shown is ")
    assert server.act(entry, "down").json == {"said": "orphan: ended; nothing is left running"}
    assert "orphan" not in server.clusters()
    # What the killed kernel told is of no use any more.
    server.clusters()
    assert not list((server.runtime / "jupyter-sky").glob("*"))


def test_two_notebooks_have_two_clusters_and_can_share_one(server: Server, opened: Open) -> None:
    first, second = opened("first.ipynb"), opened("second.ipynb")
    first.run("%sky up --nodes 1 --cluster one")
    second.run("%sky up --nodes 1 --cluster two")
    server.until("one", lambda entry: entry["kernels"])
    server.until("two", lambda entry: entry["kernels"])
    clusters = server.clusters()
    assert [each["path"] for each in clusters["one"]["kernels"]] == ["first.ipynb"]
    assert [each["path"] for each in clusters["two"]["kernels"]] == ["second.ipynb"]
    second.run("%sky attach one")
    cell = first.start("%%sky --cluster one\nimport time\ntime.sleep(600)")
    # The second may be the first to tell of the run; the one that began it leads in the end.
    both = ["first.ipynb", "second.ipynb"]
    entry = server.until("one", lambda entry: [each["path"] for each in entry["kernels"]] == both)
    assert entry["state"] == "running"
    assert server.act(entry, "down").json["said"] == "one: ended; nothing is left running"
    assert "cluster one was ended" in first.finish(cell).traceback
    assert "one" not in server.clusters()


def test_the_last_run_of_two_notebooks_is_shown(server: Server, told: Callable[..., Path]) -> None:
    def shown() -> str:
        entry = server.clusters()["shown"]
        return str(entry["snapshot"]["run"]["title"])

    before, last = ({"title": title, "state": "ok", "seconds": 5.0} for title in ("before", "last"))
    older = samples.changed(samples.snapshot(), run={**before, "started": 1.7e9})
    newer = samples.changed(samples.snapshot(), run={**last, "started": 1.7e9 + 60})
    told(newer, kernel="k1")
    # Its kernel has written again, because the other one's run has ended.
    told(older, kernel="k2")
    assert shown() == "last"
    going = samples.changed(samples.snapshot(), run={"title": "present", "started": 1.7e9 + 30})
    told(going, kernel="k2")
    assert shown() == "present"
    killed = processes.describe(1)["mark"]
    told(newer, kernel="k1", mark=killed)
    told(going, kernel="k2", mark=killed)
    told(samples.changed(samples.snapshot(), run={**before, "started": 1.7e9}), "k3", mark=killed)
    assert shown() == "present", "it had gone on for longer than the last one"


def test_a_run_whose_kernel_was_killed_is_shown_by_another_notebook(
    server: Server, opened: Open
) -> None:
    first, second = opened("first.ipynb"), opened("second.ipynb")
    first.run("%%sky --nodes 1 --cluster left --idle-timeout 1h\npass")
    second.run("%sky attach left")
    pid = second.pid  # it cannot be asked later
    cell = second.start("%%sky\nprint('on', flush=True)\nimport time\ntime.sleep(600)")
    second.until(cell, lambda cell: "on" in cell.stdout)
    os.kill(pid, signal.SIGKILL)
    entry = server.until(
        "left", lambda entry: entry["state"] == "running" and len(entry["kernels"]) == 1
    )
    assert entry["snapshot"]["run"]["state"] == "ok", "that of the first notebook"
    stopped = time.time()
    assert server.act(entry, "interrupt", {"run": None}).json == {"said": "left: stopping"}
    entry = server.until("left", lambda entry: entry["state"] == "ready")
    assert time.time() - (3600 - entry["idle"]["left"]) > stopped, "idle since this run"


def test_a_notebook_that_ends_takes_back_what_it_told(server: Server) -> None:
    kernel = server.open("ends.ipynb")
    kernel.run("%sky up --nodes 1 --cluster left")
    server.until("left", lambda entry: entry["kernels"])
    server.kernels.remove(kernel)
    kernel.close()
    assert not list((server.runtime / "jupyter-sky").glob("*"))
    entry = server.clusters()["left"]
    assert entry["snapshot"] is None
    note = "No notebook is connected to it: it ends itself after 1 min without one."
    assert entry["note"] == note


def listed(folder: Path, states: Mapping[str, ClusterStatus] | None = None) -> list[Entry]:
    """The clusters as a server lists them that has no kernels of its own."""
    inventory = cluster_list.read_inventory(KernelReports(folder))
    return cluster_list.answer(inventory, states or {}, {}, ServerKernels(folder, {}))["clusters"]


def test_a_cluster_that_nobody_uses_is_lost_as_was_said(alone: Cluster, tmp_path: Path) -> None:
    def note(state: ClusterStatus) -> str:
        shown = listed(tmp_path, {alone.id: state})
        [note] = [each["note"] for each in shown if each["name"] == alone.name]
        return note

    assert note("lost") == (
        "Its nodes are gone (it ends itself after 10 min without a notebook): end it to "
        "remove what is left of it."
    )
    registry.change(alone.id, {"idle_timeout": 120})
    assert "it ends itself after 2 min without a notebook" in note("lost")
    registry.change(alone.id, {"grace": None})
    assert note("lost") == "Its nodes are gone: end it to remove what is left of it."


def test_what_does_not_work_is_said_to_who_asked_and_stays_nowhere(
    server: Server, opened: Open, alone: Cluster
) -> None:
    kernel = opened("wrong.ipynb")
    kernel.run("%sky up --nodes 1 --cluster wrong")
    server.until("wrong", lambda entry: entry["kernels"])
    for name in ("wrong", alone.name):
        entry = server.clusters()[name]
        answer = server.act(entry, "restart", {"ranks": [0, 7]})
        assert answer.status in (400, 409)
        assert f"there is no rank 7, {name} has rank" in answer.message
        assert server.clusters()[name]["note"] == entry["note"]
    kernel.run("%%sky\n1")
    entry = server.until("wrong", lambda entry: entry["snapshot"]["run"])  # written since then
    assert entry["note"] == ""


def test_what_fails_later_than_a_page_waits_is_known(
    alone: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "_REPLY_WITHIN", 0.0)
    reports = KernelReports(tmp_path)
    inventory = cluster_list.read_inventory(reports)
    [row] = [row for row in inventory.rows if row.name == alone.name]

    async def fail() -> str:
        does = ClusterActions(reports)
        said = await does.run(inventory, row.id, "restart", {"ranks": [7]})
        assert said == f"{alone.name}: restart is taking a while, and continues in the background"
        while not (failures := does.failures(inventory)):
            await asyncio.sleep(0.01)
        kept = failures[row.id]
        assert not does.failures(replace(inventory, rows=()))  # the cluster has ended
        return kept

    assert "there is no rank 7" in asyncio.run(fail())


def test_ranks_are_restarted_while_the_cell_is_busy(server: Server, opened: Open) -> None:
    kernel = opened("anew.ipynb")
    kernel.run("%%sky --nodes 2 --cluster anew\nx = 1")
    cell = kernel.start("%%sky\nprint('on', flush=True)\nimport time\ntime.sleep(600)")
    kernel.until(cell, lambda cell: "on" in cell.stdout)
    entry = server.until("anew", lambda entry: entry["state"] == "running")
    assert server.act(entry, "restart", {"ranks": None}).json == {
        "said": "anew: ranks 0-1 restarted with empty namespaces"
    }
    assert "is lost" in kernel.finish(cell).traceback
    assert "name 'x' is not defined" in kernel.finish(kernel.start("%%sky\nx")).traceback


def test_clusters_are_scaled(server: Server, opened: Open, alone: Cluster) -> None:
    kernel = opened("scale.ipynb")
    kernel.run("%%sky --nodes 2 --cluster grows\nx = 1")
    entry = server.until("grows", lambda entry: entry["kernels"])
    said = server.act(entry, "scale", {"nodes": 3, "max_price": None}).json["said"]
    assert said.startswith("grows: 3 local nodes, 3 ranks on CPU")
    entry = server.until("grows", lambda entry: entry["nodes"] == 3)
    assert entry["line"].startswith("%%sky --nodes 3 ")
    kernel.run("%%sky --ranks 0-1\nassert x == 1")
    same = server.act(entry, "scale", {"nodes": 3, "max_price": None})
    assert (same.status, same.message) == (409, "grows already has 3 nodes.")
    cell = kernel.start("%%sky\nprint('on', flush=True)\nimport time\ntime.sleep(600)")
    kernel.until(cell, lambda cell: "on" in cell.stdout)
    busy = server.act(entry, "scale", {"nodes": 2, "max_price": None})
    assert busy.status in (400, 409) and "grows" in busy.message
    server.act(entry, "interrupt", {"run": None})
    kernel.finish(cell)
    # No kernel is connected any more, so the command line does it.
    alone.close()
    entry = server.until(alone.name, lambda entry: entry["state"] == "ready")
    # As a page asks that was loaded before an update.
    said = server.act(entry, "scale", {"nodes": 1}).json["said"]
    assert said.startswith(f"{alone.name}: 1 local node, 1 rank on CPU")


def test_logs_of_any_rank_also_while_the_cell_is_busy(server: Server, opened: Open) -> None:
    kernel = opened("logs.ipynb")
    kernel.run("%%sky --nodes 2 --cluster logs\nimport os\nprint('I am', os.getpid() and 'é')")
    cell = kernel.start("%%sky\nprint('more', flush=True)\nimport time\ntime.sleep(600)")
    kernel.until(cell, lambda cell: "more" in cell.stdout)
    entry = server.clusters()["logs"]
    # The cell has shown what rank 0 has printed.
    until(lambda: server.sky(f"clusters/{entry['id']}/logs/1?tail=1").json["text"] == "more\n")
    log = server.sky(f"clusters/{entry['id']}/logs/1")
    assert log.json == {"rank": 1, "text": "I am é\nmore\n"}
    assert server.sky(f"clusters/{entry['id']}/logs/1?tail=1").json["text"] == "more\n"
    wrong = server.sky(f"clusters/{entry['id']}/logs/9")
    assert (wrong.status, wrong.message) == (400, "logs: there is no rank 9, logs has ranks 0-1.")
    assert server.sky(f"clusters/{entry['id']}/logs/1?tail=0").status == 400
    server.act(entry, "interrupt", {"run": None})
    kernel.finish(cell)


@pytest.fixture
def registry_file() -> Path:
    return home() / "registry.sqlite"


def test_a_row_that_cannot_be_made_out_is_shown_beside_the_others(
    server: Server, alone: Cluster, registry_file: Path
) -> None:
    registry.record("0000000a", "half", "local", {"nodes": 1})
    registry.record("0000000b", "<b>old</b>", "moon", {"nodes": 1, "idle_timeout": "soon"})
    with sqlite3.connect(registry_file) as database:
        database.execute("UPDATE clusters SET spec = '{\"nodes\": ' WHERE id = '0000000a'")
        database.execute(
            "UPDATE clusters SET machines = '[{\"nodes\": [7]}]' WHERE id = '0000000b'"
        )
    clusters = server.clusters()
    assert clusters["half"]["state"] == "unknown"
    assert clusters["half"]["note"].startswith("Its entry in the registry cannot be read")
    assert clusters["<b>old</b>"]["state"] == "unknown"
    assert clusters["<b>old</b>"]["idle"] is None
    assert alone.name in clusters
    refused = server.act(clusters["<b>old</b>"], "down")
    assert refused.message.startswith("no cluster can have the name '<b>old</b>'")
    assert server.act(clusters["half"], "interrupt", {"run": None}).status == 409
    assert (
        server.act(clusters["half"], "down")
        .json["said"]
        .startswith("half: removed from the registry")
    )
    assert "half" not in server.clusters()


def test_a_stopped_cluster_is_shown_with_what_its_disks_cost(tmp_path: Path) -> None:
    registry.record("0000000c", "train", "aws", {"nodes": 1, "idle_timeout": 3600.0})
    registry.record_machines("0000000c", [{"nodes": [{"price": 2.5, "ranks": [0]}]}])
    stops.record_stop("0000000c", time.time(), stops.DiskCost(0.01))
    shown = listed(tmp_path)
    [entry] = [each for each in shown if each["name"] == "train"]
    assert (entry["state"], entry["price"], entry["snapshot"]) == ("stopped", 0.01, None)
    assert entry["running_price"] == 2.5
    assert entry["note"] == "Its disks are kept: Start or `%sky start train` starts it again."
    # Nothing ends the disks when the limit is reached: it is said.
    [row] = [row for row in registry.rows() if row.id == "0000000c"]
    stops.record_begin(row)
    stops.record_stop("0000000c", time.time(), stops.DiskCost(0.01, left=0.0))
    shown = listed(tmp_path)
    [note] = [each["note"] for each in shown if each["name"] == "train"]
    assert note.startswith("Its --max-cost is spent, and its disks go on costing: end it, or give")
    # Once somebody starts it, it is starting, whatever was known of it before.
    [row] = [row for row in registry.rows() if row.id == "0000000c"]
    stops.record_begin(row)
    shown = listed(tmp_path, {"0000000c": "stopped"})
    registry.remove("0000000c")
    assert [each["state"] for each in shown if each["name"] == "train"] == ["starting"]


def test_a_cluster_whose_nodes_are_queued_for_says_how_that_gets_on(tmp_path: Path) -> None:
    spec = {"nodes": 1, "idle_timeout": None, "starter": processes.describe()}
    registry.record("0000000d", "queued", "slurm", spec)
    row_updates.record_progress("0000000d", "job 12 is pending: 3 jobs of gpu are before it")

    def shown() -> tuple[str, str]:
        entries = listed(tmp_path)
        [entry] = [each for each in entries if each["name"] == "queued"]
        return entry["state"], entry["note"]

    assert shown() == ("starting", "Job 12 is pending: 3 jobs of gpu are before it.")
    registry.clear_starter("0000000d")
    state, note = shown()
    registry.remove("0000000d")
    assert state == "lost"
    assert note.startswith("Its notebook has ended while it waited (job 12 is pending: 3 jobs")


def test_a_cluster_without_a_price_is_shown_with_its_hours(tmp_path: Path) -> None:
    registry.record("0000000d", "queued", "slurm", {"nodes": 2, "counts_hours": True})
    node = {"accelerators": 4, "gpu": "A100", "ranks": [0]}
    registry.record_machines("0000000d", [{"nodes": [node]}] * 2, time.time() - 1800)
    shown = listed(tmp_path)
    registry.remove("0000000d")
    [entry] = [each for each in shown if each["name"] == "queued"]
    assert (entry["price"], entry["unit"]) == (None, "GPU hours")
    assert entry["cost"] == pytest.approx(4.0, rel=0.02)


def test_a_registry_that_is_none_is_said(server: Server, registry_file: Path) -> None:
    before = registry_file.read_bytes() if registry_file.exists() else None
    registry_file.write_bytes(b"no database" * 1000)
    try:
        answer = server.sky("clusters")
    finally:
        registry_file.unlink()
        if before:
            registry_file.write_bytes(before)
    assert answer.status == 200
    assert answer.json["clusters"] == []
    assert answer.json["trouble"].startswith("The registry of clusters cannot be read: ")


def test_an_answer_with_many_ranks_comes_compressed(
    server: Server, told: Callable[..., Path]
) -> None:
    told(samples.snapshot(nodes=256))
    headers = {"Authorization": f"token {server.token}"}
    usual = server.sky("clusters", **headers)
    packed = server.sky("clusters", **headers, **{"Accept-Encoding": "gzip, br"})
    assert (usual.headers["Content-Encoding"], usual.headers["Vary"]) == (None, "Accept-Encoding")
    assert (packed.headers["Content-Encoding"], packed.headers["Vary"]) == (
        "gzip",
        "Accept-Encoding",
    )
    assert len(packed.body) < len(usual.body) / 10
    assert json.loads(gzip.decompress(packed.body)).keys() == usual.json.keys()
    assert packed.headers["Content-Type"] == usual.headers["Content-Type"]
