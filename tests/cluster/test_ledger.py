"""What clusters have cost stays known when they are gone, by day."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_sky.cluster.cost_meter import ClusterCost, CostMeter, CostRate, Unit
from jupyter_sky.cluster.inventory import joining_cost, registry, row_updates, stops
from jupyter_sky.cluster.inventory.stops import DiskCost
from jupyter_sky.cluster.inventory.storage import ledger
from jupyter_sky.cluster.inventory.storage.ledger import Spent
from jupyter_sky.providers.progress import Rented
from jupyter_sky.transport import event_loop
from tests.notebook.conftest import Notebook, notebook

__all__ = ["notebook"]


@pytest.fixture(autouse=True)
def _of_this_test_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))


def rent(identity: str, name: str, price: float | None, hours_ago: float) -> None:
    """Have a row of a cluster that was started so many hours ago."""
    spec = {"nodes": 1, "place": "us-east-1 as work" if price else "", "line": ""}
    registry.record(identity, name, "aws" if price else "local", spec)
    registry.record_machines(identity, [{"nodes": [{"price": price}]}])
    with registry.opened() as database:
        database.execute(
            "UPDATE clusters SET created = ? WHERE id = ?",
            (time.time() - 3600 * hours_ago, identity),
        )


def queue(identity: str, name: str, gpus: Sequence[int], hours_ago: float) -> None:
    """Have a row of a cluster that waited for a day, and has had its nodes for so many hours."""
    spec = {"nodes": len(gpus), "place": "Slurm", "line": "", "counts_hours": True}
    registry.record(identity, name, "slurm", spec)
    with registry.opened() as database:
        created = time.time() - 3600 * (hours_ago + 24)
        database.execute("UPDATE clusters SET created = ? WHERE id = ?", (created, identity))
    registry.record_machines(identity, machines(gpus), time.time() - 3600 * hours_ago)


def machines(gpus: Sequence[int]) -> list[dict[str, Any]]:
    return [{"nodes": [{"price": None, "accelerators": each, "ranks": []}]} for each in gpus]


ABOUT = 0.02
"""The part by which costs may differ: they go on while a test waits for the processor."""


def dollars(name: str) -> float:
    return sum(each.dollars for each in registry.all_spent() if each.name == name)


def test_it_is_kept_through_changes_of_size_and_the_end() -> None:
    rent("a", "train", 2.0, hours_ago=3)
    assert dollars("train") == pytest.approx(6.0, rel=ABOUT)
    registry.record_size("a", 2, [{"nodes": [{"price": 2.0}, {"price": 2.0}]}])
    assert dollars("train") == pytest.approx(6.0, rel=ABOUT)
    row = registry.find("train")
    assert row is not None
    assert row.spent(time.time() + 3600).dollars == pytest.approx(4.0, rel=ABOUT)
    registry.remove("a")
    assert registry.rows() == []
    assert dollars("train") == pytest.approx(6.0, rel=ABOUT)
    # Another one of this name, which ends by itself before anybody looks.
    rent("b", "train", 1.0, hours_ago=5)
    row_updates.record_end("b", time.time() - 4 * 3600)
    registry.remove("b")
    assert dollars("train") == pytest.approx(7.0, rel=ABOUT)
    rent("c", "here", None, hours_ago=5)
    registry.remove("c")
    assert dollars("here") == 0


def test_what_takes_the_place_of_a_lost_node_costs_what_it_costs_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lost one counts until then, as it may be there still."""
    rent("a", "train", 2.0, hours_ago=1)
    rented = Rented.of("1 × dearer", 5.0, 1, 0, 600.0)
    lost: Any = SimpleNamespace(identity="a", lost=[SimpleNamespace(price=2.0)])
    clock = SimpleNamespace(time=time.time)
    monkeypatch.setattr(joining_cost, "time", clock)

    class Provider:
        async def add_nodes(self, running: object, progress: Callable[[str], None]) -> None:
            progress(Rented.of("1 × other", 50.0, 1, 0, 600.0))
            progress(Rented.of("which AWS has taken back", None, 0, 0, 0.0))
            progress(rented)
            clock.time = lambda: time.time() + 3600

    async def replace() -> None:
        async with joining_cost.JoiningCost(lost, cost, lambda text: None) as joining:
            await joining.add_nodes(cast(Any, Provider()))

    cost = ClusterCost(CostMeter(0.0, time.time()), counts_hours=False)
    cost.set_nodes([{"price": 2.0}])
    event_loop.wait(replace())
    assert cost.so_far == pytest.approx(3.0, rel=ABOUT)
    assert dollars("train") == pytest.approx(2.0 + 3.0, rel=ABOUT)


@pytest.mark.parametrize("ends", ["down", "stop"])
def test_what_several_notebooks_see_end_at_once_counts_once(ends: str) -> None:
    at_once = threading.Barrier(4)

    def see() -> None:
        at_once.wait()
        if ends == "down":
            registry.remove("a")
        else:
            stops.record_stop("a", time.time(), DiskCost(0.0))

    for _ in range(5):
        rent("a", "train", 2.0, hours_ago=1)
        before = dollars("train")
        with ThreadPoolExecutor(4) as threads:
            for seen in [threads.submit(see) for _ in range(4)]:
                seen.result()
        assert dollars("train") == pytest.approx(before, abs=ABOUT)
        registry.remove("a")


def test_of_two_notebooks_that_start_a_stopped_cluster_at_once_one_does() -> None:
    rent("a", "train", 2.0, hours_ago=1)
    stops.record_stop("a", time.time(), DiskCost(0.1))
    row, at_once = registry.with_id("a"), threading.Barrier(2)
    assert row

    def start() -> CostMeter:
        at_once.wait()
        return stops.record_begin(row)

    with ThreadPoolExecutor(2) as threads:
        failed = [each.exception() for each in [threads.submit(start) for _ in range(2)]]
    assert {str(each) for each in failed if each} == {
        "cluster train is being started by another notebook: wait for it."
    }
    assert None in failed
    registry.remove("a")


def test_what_ended_while_nobody_was_there_costs_no_more_than_it_can() -> None:
    def ended(identity: str, ends_by: Any) -> list[tuple[str, float]]:
        rent(identity, identity, 2.0, hours_ago=100)
        registry.change(identity, {"ends_by": ends_by})
        row_updates.record_end(identity, math.inf)
        registry.remove(identity)
        every = [each for each in registry.all_spent() if each.name == identity]
        return [(each.place, round(each.hours, 1)) for each in every]

    two_hours = time.time() - 98 * 3600
    where = "us-east-1 as work"
    assert ended("idle", {"time": two_hours, "is_idle": True}) == [(where, 2.0)]
    # A run may have gone on until its limit, or not.
    assert ended("busy", {"time": two_hours, "is_idle": False}) == [(f"{where}, at most", 2.0)]
    week = time.time() + 7 * 24 * 3600
    assert ended("long", {"time": week, "is_idle": False}) == [(f"{where}, at most", 100.0)]
    assert ended("older", None) == [(f"{where}, at most", 100.0)]


def test_hours_are_counted_where_there_is_no_price() -> None:
    queue("a", "train", [4, 4], hours_ago=2)
    row = registry.find("train")
    assert row is not None
    assert (row.price, row.rate) == (None, CostRate(8, Unit.GPU_HOURS))
    assert row.cost(time.time()) == pytest.approx(16.0, rel=ABOUT)
    registry.record_size("a", 1, machines([4]))
    row = registry.find("train")
    assert row is not None
    assert row.cost(time.time() + 3600) == pytest.approx(20.0, rel=ABOUT)
    registry.remove("a")
    queue("b", "train", [0, 0, 0], hours_ago=1)
    row = registry.find("train")
    assert row is not None
    assert row.rate.unit is Unit.NODE_HOURS
    registry.remove("b")
    # What ends in the queue has used nothing.
    registry.record("c", "train", "slurm", {"nodes": 1, "counts_hours": True})
    registry.remove("c")
    spent = [each for each in registry.all_spent() if each.name == "train"]
    assert sum(each.gpu_hours for each in spent) == pytest.approx(16.0, rel=ABOUT)
    assert sum(each.node_hours for each in spent) == pytest.approx(3.0, rel=ABOUT)
    assert dollars("train") == 0


def test_what_an_earlier_version_has_written_is_read() -> None:
    with registry.opened() as database:
        database.execute("INSERT INTO spent VALUES ('old', 'us-east-1', 0, 3600, 2.0)")
    [spent] = registry.all_spent()
    assert spent == Spent("old", "us-east-1", 0, 3600, 2.0)
    assert spent.dollars == 2.0


def test_a_time_over_midnight_belongs_to_two_days() -> None:
    begin = datetime(2026, 11, 21, 22, 0).timestamp()
    spent = [
        Spent("train", "us-east-1", begin, begin + 5 * 3600, 2.0, 2, 8),
        Spent("train", "us-east-1", begin + 6 * 3600, begin + 7 * 3600, 1.0, 1),
        Spent("eval", "eu-west-1", begin - 10 * 86400, begin - 10 * 86400 + 3600, 9.0),
    ]
    now = begin + 10 * 3600
    first, second = date(2026, 11, 22), date(2026, 11, 21)
    assert ledger.by_day(spent, 2, now) == {
        (first, "train", "us-east-1"): pytest.approx((4.0, 7.0, 24.0, 1.0)),
        (second, "train", "us-east-1"): pytest.approx((2.0, 4.0, 16.0, 0.0)),
    }
    assert len(ledger.by_day(spent, 30, now)) == 3
    assert list(ledger.by_day(spent, 1, now)) == [(first, "train", "us-east-1")]


def test_the_command(notebook: Notebook) -> None:
    assert notebook.run("%sky costs") == "no cluster has cost anything in the last 30 days\n"
    assert notebook.run("%sky costs --json") == "[]\n"
    rent("a", "train", 2.0, hours_ago=50)
    row_updates.record_end("a", time.time() - 49 * 3600)
    registry.remove("a")
    rent("b", "eval", 3.0, hours_ago=0.001)
    rent("c", "away", 0.1, hours_ago=50)
    row_updates.record_end("c", math.inf)
    head, *rows, total, used, note, at_most = notebook.run("%sky costs").splitlines()
    assert head.split() == ["day", "cluster", "where", "up", "used", "cost"]
    assert any("train" in row and "us-east-1 as work" in row for row in rows)
    assert any("eval" in row for row in rows)
    assert total.split()[-1].startswith("$7.0")
    assert used.startswith("used: hours of GPUs")
    assert "AWS's own bill" in note
    assert at_most.startswith("at most: it ended while no notebook was there")
    entries = json.loads(notebook.run("%sky costs --json"))
    assert sum(each["dollars"] for each in entries) == pytest.approx(7.0, abs=0.1)
    train = [each for each in entries if each["cluster"] == "train"]  # perhaps on two days
    assert {each["where"] for each in train} == {"us-east-1 as work"}
    assert sum(each["hours"] for each in train) == pytest.approx(1.0, abs=0.01)
    assert {each["cluster"] for each in entries if each["at_most"]} == {"away"}
    assert "train" not in notebook.run("%sky costs --days 1")
    assert "train" in notebook.run("%sky costs --days 1000000")
    registry.remove("b")
    registry.remove("c")


def test_the_command_where_hours_are_counted(notebook: Notebook) -> None:
    queue("a", "shared", [2], hours_ago=50)
    row_updates.record_end("a", time.time() - 49 * 3600)
    registry.remove("a")
    rent("b", "own", None, hours_ago=1)
    _, *rows, total, used = notebook.run("%sky costs").splitlines()
    assert [row.split()[1:3] for row in rows] in ([["shared", "Slurm"]], [["shared", "Slurm"]] * 2)
    assert total.split() == ["in", "all", "2.00", "GPU", "hours"]
    assert used.startswith("used: hours of GPUs")
    registry.remove("b")
