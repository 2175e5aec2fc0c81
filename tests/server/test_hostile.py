"""Files that are not what a kernel writes: half of one, old ones, and those that mean harm."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_sky import __version__
from jupyter_sky.cluster.inventory import kernel_files, registry
from jupyter_sky.cluster.inventory.kernel_files import ClusterReport, KernelFile, Unreadable
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.cluster.state import RankPhase
from jupyter_sky.server import cluster_list
from jupyter_sky.server.cluster_list import ServerKernels
from jupyter_sky.server.kernel_reports import KernelReports
from tests.notebook.panel import samples
from tests.notebook.panel.samples import HOSTILE
from tests.server.conftest import IDENTITY
from tests.server.jupyter import Server


def test_hostile_text_comes_as_text(server: Server, told: Callable[..., Path]) -> None:
    snapshot = samples.changed(
        samples.snapshot(),
        rank_2={"line": HOSTILE, "trouble": HOSTILE},
        output={"rank": 0, "text": HOSTILE * 1000},
    )
    told(snapshot)
    answer = server.sky("clusters")
    assert b"<script>" in answer.body and b"\x1b" not in answer.body
    entry = server.clusters()["shown"]
    assert entry["snapshot"]["ranks"][2]["line"] == HOSTILE
    assert entry["state"] == "running"


def test_another_version_of_jupyter_sky_is_named(server: Server, told: Callable[..., Path]) -> None:
    told(samples.snapshot(), jupyter_sky="9.9.9")
    entry = server.clusters()["shown"]
    assert entry["note"] == (
        f"/somewhere/n.ipynb has jupyter_sky 9.9.9, and this server {__version__}: "
        "install the same in both."
    )
    assert entry["kernels"][0]["jupyter_sky"] == "9.9.9"


def test_those_who_ask_at_once_hear_of_every_kernel(tmp_path: Path) -> None:
    for at in range(100):
        kernel_files.write(
            tmp_path, KernelFile(f"k{at}", "", 0.0, (ClusterReport(IDENTITY, {}, None),))
        )
    reports = KernelReports(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        for found, _ in threads.map(lambda _: reports.all(), range(40)):
            assert len(found) == 100


@pytest.mark.parametrize(
    "snapshot",
    [
        {},
        {"version": 2},
        samples.changed(samples.snapshot(), ranks=[{"rank": "<b>"}]),
        samples.changed(samples.snapshot(), cluster={"phase": "__proto__"}),
        samples.changed(samples.snapshot(), output={"rank": 0, "text": None}),
        samples.changed(samples.snapshot(), sent_bytes=1.5),
    ],
)
def test_a_snapshot_of_another_kind_is_not_shown(
    server: Server, told: Callable[..., Path], snapshot: Any
) -> None:
    told(snapshot)
    entry = server.clusters()["shown"]
    assert entry["snapshot"] is None
    assert entry["state"] == "unknown"
    assert entry["note"].startswith("The report of /somewhere/n.ipynb cannot be shown (")
    assert entry["kernels"]  # actions still go there


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "it cannot be read"),
        (b'{"version": 2, "kernel"', "it cannot be read"),
        (b"\xff\x00\xfe", "it cannot be read"),
        (b"[" * 100_000, "it cannot be read"),
        (b"[]", "it is none of ours"),
        (b'{"version": 7}', "it is of version 7 of these files"),
        (b'{"version": 2, "clusters": [{"id": NaN}]}', "it has NaN for a number"),
        (b'{"version": 2, "clusters": [], "seen": 1e999}', "it has 1e999 for a number"),
        (b'{"version": 2, "clusters": [], "kernel": 7}', "it cannot be read"),
        (b"0" * (kernel_files.LARGEST + 1), "it is too large"),
    ],
)
def test_a_file_of_another_kind_is_left_out(
    server: Server, told: Callable[..., Path], text: bytes, why: str
) -> None:
    told(samples.snapshot())
    bad = kernel_files.folder(server.runtime) / "bad.json"
    bad.write_bytes(text)
    try:
        answer = server.sky("clusters").json
    finally:
        bad.unlink()
    assert answer["trouble"].startswith(f"The report of kernel bad is ignored: {why}")
    assert [entry["name"] for entry in answer["clusters"]] == ["shown"]
    assert server.sky("clusters").json["trouble"] == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["version", "clusters", "id", "snapshot", "kernel", "pid", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(content=JSON, cut=st.integers(0, 10**6), new=st.binary(max_size=4))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_file_is_read_or_refused_with_one_error(
    tmp_path: Path, content: Any, cut: int, new: bytes
) -> None:
    good = {"version": kernel_files.VERSION, "clusters": [], **asdict(KernelFile("k", "", 0.0, ()))}
    if isinstance(content, dict):
        good.update(content)
    data = json.dumps(good if cut % 3 else content).encode()
    at = cut % len(data)
    (tmp_path / "k.json").write_bytes(data[:at] + new + data[at + len(new) :])
    with contextlib.suppress(Unreadable):
        assert isinstance(kernel_files.read(tmp_path / "k.json"), KernelFile)


PLACES = st.sampled_from(
    [
        *("clusters", "clusters/x/logs/0", "clusters/x/logs/0/file", "clusters/x/runs/ab"),
        *(f"clusters/{IDENTITY}/scale", f"clusters/{IDENTITY}/restart", "clusters/x/down"),
        *("kernels/x", "kernels/..%2f..", "offers", "clusters/%00/logs/1", "clusters/%ff/down"),
        *("nothing", "clusters/x/logs/999999999"),
    ]
)


@given(
    place=PLACES,
    query=st.sampled_from(["", "?tail=1", "?tail=x", "?tail=%ff", "?nodes=0", "?a=" + "x" * 3000]),
    body=st.none() | st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()),
)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_request_is_answered_with_a_sentence(
    server: Server, place: str, query: str, body: bytes | None
) -> None:
    answer = server.sky(place + query, body)
    if answer.status != 200:
        assert 400 <= answer.status < 500, (answer.status, answer.body)
        assert answer.message


def test_a_file_under_the_name_of_another_kernel_is_left_out(
    server: Server, told: Callable[..., Path]
) -> None:
    path = told(samples.snapshot())
    path.rename(path.with_name("k2.json"))
    try:
        answer = server.sky("clusters").json
    finally:
        path.with_name("k2.json").unlink()
    assert answer["trouble"] == "The report of kernel k2 is ignored: it is of another kernel."
    assert answer["clusters"][0]["kernels"] == []


def test_a_file_of_a_process_whose_id_went_to_another_is_stale(
    server: Server, told: Callable[..., Path]
) -> None:
    told(samples.snapshot(), mark=processes.describe(1)["mark"])
    entry = server.clusters()["shown"]
    assert entry["kernels"] == []
    assert "has ended" in entry["note"]


def test_a_clock_that_is_set_ends_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    file = KernelFile("k", "", time.time())
    began = psutil.Process().create_time()
    # What the system says of the time of day at which it began changes with the clock.
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: began + 3600)
    assert file.is_live


def test_a_clock_that_is_set_back_gives_an_idle_cluster_no_more_time(tmp_path: Path) -> None:
    registry.record("0000000c", "quiet", "local", {"nodes": 1, "idle_timeout": 60.0})
    snapshot = samples.snapshot(nodes=1)
    snapshot["run"], snapshot["ranks"][0]["phase"] = None, RankPhase.IDLE
    later = time.time() + 3600
    report = ClusterReport("0000000c", snapshot, idle_since=later)
    kernel_files.write(tmp_path, KernelFile("k", "/n.ipynb", later, (report,)))
    inventory = cluster_list.read_inventory(KernelReports(tmp_path))
    shown = cluster_list.answer(inventory, {}, {}, ServerKernels(tmp_path, {}))["clusters"]
    registry.remove("0000000c")
    [idle] = [each["idle"] for each in shown if each["name"] == "quiet"]
    assert idle == {"timeout": 60.0, "left": 60.0, "keeps_disks": False}


def test_a_kernel_on_another_computer_is_named_and_its_file_stays(
    server: Server, told: Callable[..., Path]
) -> None:
    path = told(samples.snapshot(), computer="another", mark="another 1")
    entry = server.clusters()["shown"]
    assert entry["kernels"] == []
    assert entry["note"].startswith("/somewhere/n.ipynb is on another; what is shown is ")
    assert entry["snapshot"]["cluster"]["name"] == "digits-3f2a"
    registry.remove(IDENTITY)
    assert "shown" not in server.clusters()
    assert path.exists()


def test_a_link_out_of_the_folder_tells_nothing(
    server: Server, told: Callable[..., Path], tmp_path: Path
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"version": 2, "password": "hunter2"}))
    link = kernel_files.folder(server.runtime) / "link.json"
    told(samples.snapshot())
    link.symlink_to(secret)
    try:
        assert b"hunter2" not in server.sky("clusters").body
    finally:
        link.unlink()


def test_a_kernel_with_another_registry_is_seen_all_the_same(
    server: Server, told: Callable[..., Path]
) -> None:
    registry.remove(IDENTITY)
    told(samples.snapshot(gpu="A100"), home="/another/home")
    entry = server.clusters()["digits-3f2a"]
    assert (entry["provider"], entry["nodes"], entry["gpu"]) == ("aws", 4, "A100")
    assert entry["price"] == pytest.approx(16.4) and entry["cost"] == 1.37
    told(samples.snapshot(gpu="A100"))
    assert "digits-3f2a" not in server.clusters()  # one that has ended in this registry
