"""What is known of a cluster, event by event."""

from __future__ import annotations

from dataclasses import replace

from jupyter_sky.cluster.state import ClusterPhase, ClusterState, ranks_done, reduce, running
from jupyter_sky.providers.base import Node
from jupyter_sky.transport.protocol.events import Formed, RankDone, RankExited, RankStarted


def test_an_event_changes_its_own_rank() -> None:
    nodes = [Node(0, "10.0.0.1", "eth0", (0, 3)), Node(1, "10.0.0.2", "eth0", (5,))]
    state = ClusterState.new(nodes)
    for rank in (5, 0, 3):
        state = reduce(state, RankStarted(rank, 100 + rank))
        state = reduce(state, Formed(rank, 1, None))
    assert [(rank.rank, rank.pid, rank.phase) for rank in state.ranks] == [
        (0, 100, "idle"),
        (3, 103, "idle"),
        (5, 105, "idle"),
    ]
    state = reduce(state, RankExited(3, 103, "it was killed", None, "", True))
    assert [rank.phase for rank in state.ranks] == ["idle", "gone", "idle"]


def test_an_event_of_a_rank_that_is_not_there_any_more_changes_nothing() -> None:
    state = ClusterState.new([Node(0, "10.0.0.1", "eth0", (0, 3))])
    for rank in (1, 7):
        assert reduce(state, RankStarted(rank, 100)) == state


def test_what_a_dead_rank_means_is_another_thing_for_a_cluster_that_never_was_up() -> None:
    state = ClusterState.new([Node(0, "10.0.0.1", "eth0", (0,))])
    state = reduce(state, RankExited(0, 100, "its process ended with status 1", None, "", False))
    [dead] = state.ranks
    said = state.about_dead(dead, "train")
    assert said == "rank 0 does not start: its process ended with status 1."
    up = replace(state, phase=ClusterPhase.READY)
    assert "`%sky down train`" in up.about_dead(dead, "train")


def test_the_numbers_of_ranks_are_those_of_the_nodes_also_after_a_run() -> None:
    one, two = Node(0, "10.0.0.1", "eth0", (0, 1)), Node(1, "10.0.0.2", "eth0", (2,))
    before = ClusterState.new([one])
    assert before.numbers == (0, 1)
    in_run = running(before, (0, 1), "abc", is_whole=True)
    assert ranks_done(in_run, [RankDone(0, "abc", "ok")]).numbers == (0, 1)
    assert in_run.with_nodes([one, two]).numbers == (0, 1, 2)
    assert in_run.with_nodes([one, two]).restored(in_run, but=()).numbers == (0, 1, 2)
    assert in_run.with_nodes([two]).numbers == (2,)
