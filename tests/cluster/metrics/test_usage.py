"""What was used in the last ten minutes: measured on real ranks, sent once, kept within limits."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.metrics.usage import Usage
from jupyter_sky.cluster.network import incoming
from jupyter_sky.cluster.snapshot import History, NodeHistory
from jupyter_sky.node.agent.usage.metrics import UsageMeter
from jupyter_sky.node.agent.usage.recorder import UsageRecorder
from jupyter_sky.providers.base import Node
from jupyter_sky.providers.local import Local
from jupyter_sky.transport.frames import ProtocolError
from jupyter_sky.transport.metrics.usage_history import KEPT, RankSample, Sample, Samples, Sizes
from jupyter_sky.transport.protocol.inspection import RankHistory, UsageHistory
from tests.cluster.conftest import Cells
from tests.waiting import until

WORKING = """
import time
while True:
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    time.sleep(0.06)
"""
"""Uses a quarter of a processor: other tests have use for the rest."""


def test_a_rank_that_works_is_seen_and_a_second_kernel_has_it_all(
    new: Callable[..., Cells],
) -> None:
    cells = new(2, framework=False)
    cluster = cells.cluster
    run = cells.start(WORKING, ranks=[1])
    try:
        seen = until(lambda: _busy(cluster, rank=1), within=120)
        # Nodes of this computer share it: what a node uses is what its ranks use.
        assert seen["processor"] == _rank(seen, 1)["processor"]
        assert seen["network"] == []
        memory = _rank(seen, 1)["memory"][-1]
        assert memory is not None
        assert 1e6 < memory < seen["memory_total"]
        assert _rank(seen, 1)["gpu"] == []
        assert _rank(seen, 1)["gpu_total"] is None
        times = seen["times"]
        # A second kernel has the minutes before it came as well.
        row = registry.find(cluster.name)
        assert row is not None
        visitor = Cluster.visit(row, Local())
        assert visitor is not None
        try:
            until(lambda: _nodes(visitor.usage.history(visitor.state.nodes, 0)))
            found = _nodes(visitor.usage.history(visitor.state.nodes, 0))[1]
            assert len(found["times"]) >= len(times)
        finally:
            visitor.close()
    finally:
        cluster.interrupt_run(run.id)


def _nodes(history: History) -> dict[int, NodeHistory]:
    return {each["node"]: each for each in history["nodes"]}


def _rank(node: NodeHistory, rank: int) -> RankHistory:
    return next(each for each in node["ranks"] if each["rank"] == rank)


def _busy(cluster: Cluster, rank: int) -> NodeHistory | None:
    """Return what is known of the node of a rank, once it has been seen to work."""
    node = _nodes(cluster.usage.history(cluster.state.nodes, 0)).get(rank)
    if node is None or not node["ranks"]:
        return None
    used = [each for each in _rank(node, rank)["processor"] if each is not None]
    return node if len(used) > 1 and max(used) > 0.05 else None


# What the notebook keeps


NODES = (Node(0, "10.0.0.1", "eth0", (0, 1)),)


def _part(times: list[int], **ranks: list[float | None]) -> dict[str, Any]:
    nothing: list[float | None] = [None] * len(times)
    return {
        "times": times,
        "processors": 8,
        "memory_total": 1000,
        "processor": [1.0] * len(times),
        "memory": [],
        "network": nothing,
        "ranks": [
            {
                "rank": int(rank.removeprefix("rank_")),
                "processor": values,
                "memory": [],
                "gpu": [],
                "gpu_memory": [],
                "gpu_total": None,
            }
            for rank, values in ranks.items()
        ],
    }


def _add(usage: Usage, part: dict[str, Any], nodes: tuple[Node, ...] = NODES) -> None:
    said = incoming.report({"report": [], "history": part})
    usage.add(nodes, said.of({rank for node in nodes for rank in node.ranks}))


def test_a_page_gets_what_it_has_not_got() -> None:
    usage = Usage()
    _add(usage, _part([1000, 6000], rank_0=[0.5, 0.6]))
    whole = usage.history(NODES, 0)
    [node] = whole["nodes"]
    assert len(node["times"]) == 2
    assert node["times"][1] - node["times"][0] == 5000
    assert node["memory"] == []
    assert usage.history(NODES, whole["at"]) == {"at": whole["at"], "nodes": []}
    _add(usage, _part([6000, 11000], rank_1=[0.1, 0.2]))  # the first is known already
    [more] = usage.history(NODES, whole["at"])["nodes"]
    assert [each - node["times"][0] for each in more["times"]] == [10000]
    assert [each["rank"] for each in more["ranks"]] == [1]
    [all_of_it] = usage.history(NODES, 0)["nodes"]
    assert [each["processor"] for each in all_of_it["ranks"]] == [
        [0.5, 0.6, None],
        [None, None, 0.2],
    ]
    # A page that heard of another kernel before: nothing of that clock counts here.
    assert len(usage.history(NODES, whole["at"] + 10**12)["nodes"][0]["times"]) == 3
    # A node that has left the cluster.
    assert usage.history((), 0)["nodes"] == []
    json.dumps(usage.history(NODES, 0), allow_nan=False)


def test_it_does_not_grow_with_time() -> None:
    usage = Usage()
    for at in range(3 * KEPT):
        _add(usage, _part([5000 * (at + 1)], rank_0=[0.5]))
    [node] = usage.history(NODES, 0)["nodes"]
    assert len(node["times"]) == KEPT
    assert len(node["ranks"][0]["processor"]) == KEPT


def test_nodes_that_share_a_machine_are_their_ranks() -> None:
    usage = Usage()
    nodes = (Node(0, "127.0.0.1", "lo", (0, 1)), Node(1, "127.0.0.1", "lo", (2,)))
    part = _part([1000], rank_0=[0.5], rank_1=[0.25], rank_2=[1.0])
    _add(usage, {**part, "network": [100.0]}, nodes)
    found = usage.history(nodes, 0)["nodes"]
    assert [each["processor"] for each in found] == [[0.75], [1.0]]
    assert [each["network"] for each in found] == [[], []]


def test_a_clock_that_is_set_moves_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, real = UsageRecorder(UsageMeter(())), time.time
    for hours in (0, 1, -1):
        monkeypatch.setattr(time, "time", lambda hours=hours: real() + 3600 * hours)
        recorder.sample([])
    [first, *_, last] = [each.time for each in recorder.samples.arrived_after(-1)]
    assert last - first < 1_800_000


def test_an_agent_sends_what_it_has_not_sent() -> None:
    samples = Samples()
    samples.sizes = Sizes(8, 1000, {0: 80})
    for at in (1, 2, 3):
        samples.add(Sample(at, 1.23456, 12345, None, {0: RankSample(0.5, None, 0.75, 40)}))
    whole = samples.after(0)
    assert whole is not None
    assert whole["processor"] == [1.23] * 3
    assert whole["memory"] == [12300] * 3
    assert whole["network"] == []
    assert whole["ranks"][0]["gpu_total"] == 80
    part = samples.after(2)
    assert part is not None
    assert part["times"] == [3]
    assert samples.after(3) is None
    # There and back.
    again = Samples()
    again.add_part(whole)
    assert again.after(0) == whole


def _with(**changes: Any) -> dict[str, Any]:
    return {**_part([1000, 6000], rank_0=[0.5, 0.6]), **changes}


@pytest.mark.parametrize(
    "part",
    [
        _with(times=[]),
        _with(times=[1000] * (KEPT + 1)),
        _with(processor=[1.0]),
        _with(processor=[1.0, math.nan]),
        _with(network=[1.0, math.inf]),
        _with(memory=[1, -1]),
        _with(memory=[1, 2**60]),
        _with(processors=-1),
        _with(times=["a", "b"]),
        _with(ranks=[{"rank": 0}]),
        _with(ranks=[{**_part([1], rank_0=[0.5, 0.5, 0.5])["ranks"][0]}]),
        [],
    ],
)
def test_what_is_no_history_is_refused(part: UsageHistory) -> None:
    with pytest.raises(ProtocolError):
        incoming.report({"report": [], "history": part})


def test_a_node_speaks_for_its_own_ranks_alone() -> None:
    said = incoming.report({"report": [], "history": _part([1000], rank_0=[0.5], rank_7=[0.5])})
    assert said.speaks_for == {0, 7}
    of_its_own = said.of({0, 1})
    assert of_its_own.history is not None
    assert [each["rank"] for each in of_its_own.history["ranks"]] == [0]
