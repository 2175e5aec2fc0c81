"""The state of a cluster as known here: small, frozen, and changed by events only.

`Formation` is not frozen: it is what the tasks that form a group share.
"""

from __future__ import annotations

import asyncio
import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from jupyter_sky.providers.base import Node
from jupyter_sky.transport.protocol.error_report import ErrorReport
from jupyter_sky.transport.protocol.events import (
    Event,
    Formed,
    Lost,
    Prepared,
    Queued,
    RankDone,
    RankExited,
    RankStarted,
    RunBegan,
)
from jupyter_sky.transport.protocol.topology import Topology
from jupyter_sky.transport.rank_ranges import among

T = TypeVar("T")


class ClusterPhase(StrEnum):
    """The phase of a cluster; strip and sidebar use the same words."""

    STARTING = "starting"
    READY = "ready"
    LOST = "lost"
    DOWN = "down"


class RankPhase(StrEnum):
    """The phase of a rank; ``GONE`` if a new process is about to start, ``DEAD`` if none is."""

    STARTING = "starting"
    IDLE = "idle"
    RUNNING = "running"
    GONE = "gone"
    DEAD = "dead"


class RankState(NamedTuple):
    """A rank; a tuple, which is created six times as fast, twice per rank in each run.

    Attributes
    ----------
    rank, node
        Its number, and that of its node.
    phase
        Its phase.
    pid
        Its process; ``None`` while there is none.
    generation
        The generation of its process group; 0 for none.
    run
        The id of the run that it is executing.
    trouble
        Why it has no process, in words.
    """

    rank: int
    node: int
    phase: RankPhase = RankPhase.STARTING
    pid: int | None = None
    generation: int = 0
    run: str | None = None
    trouble: str | None = None


@dataclass(frozen=True)
class ClusterState:
    """A cluster.

    Attributes
    ----------
    phase
        Its phase.
    nodes, ranks
        Its nodes and ranks, in the order of their numbers.
    generation
        Number of the process group that the ranks are in, or are forming; 0 before the first.
    versions
        Names and versions of the packages that ranks have.
    missing
        Modules that could not be imported, and why.
    cut_off
        Whether an error or a Stop came to a run on some rank, since all ranks last began one
        together.
    queue
        The runs of all notebooks that wait for each other, in their order, and changes of the
        number of nodes; the head's agent keeps it.
    """

    phase: ClusterPhase
    nodes: tuple[Node, ...]
    ranks: tuple[RankState, ...]
    generation: int = 0
    versions: tuple[tuple[str, str], ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    cut_off: bool = False
    queue: tuple[str, ...] = ()

    @classmethod
    def new(cls, nodes: Sequence[Node]) -> ClusterState:
        """Return the state of a cluster whose ranks are about to start."""
        ranks = (RankState(rank, node.node) for node in nodes for rank in node.ranks)
        return cls(ClusterPhase.STARTING, tuple(nodes), tuple(sorted(ranks, key=lambda r: r.rank)))

    def with_nodes(self, nodes: Sequence[Node]) -> ClusterState:
        """Return the state with other nodes; existing ranks are unchanged."""
        known = {rank.rank: rank for rank in self.ranks}
        ranks = tuple(known.get(rank.rank, rank) for rank in self.new(nodes).ranks)
        return replace(self, nodes=tuple(nodes), ranks=ranks)

    def restored(self, now: ClusterState, but: Collection[int]) -> ClusterState:
        """Return this state, updated by the present state of its ranks.

        Parameters
        ----------
        now
            The present state, which may have other nodes.
        but
            Ranks to keep as they were in this state.
        """
        ranks = {rank.rank: rank for rank in now.ranks if rank.rank not in but}
        return replace(
            now,
            nodes=self.nodes,
            ranks=tuple(ranks.get(rank.rank, rank) for rank in self.ranks),
            versions=self.versions,
            missing=self.missing,
        )

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Every rank, in order; asked for several times in each run, where it never changes."""
        return tuple(rank.rank for rank in self.ranks)

    @property
    def busy_runs(self) -> frozenset[str]:
        """The runs that ranks are executing, as far as reported."""
        return frozenset(rank.run for rank in self.ranks if rank.run)

    @property
    def is_in_use(self) -> bool:
        """Whether ranks execute a run, or are about to execute one that waits."""
        return bool(self.busy_runs or self.queue)

    def about_dead(self, rank: RankState, cluster: str) -> str:
        """Say what it means for a cluster of that name that a rank is dead, and what to do."""
        if self.phase is ClusterPhase.STARTING:  # it ends with that
            return f"rank {rank.rank} does not start: {rank.trouble}."
        return (
            f"rank {rank.rank} no longer starts, {rank.trouble}: end the cluster with `%sky down "
            f"{cluster}` and start a new one."
        )

    def members(self, plugins: Iterable[str]) -> str:
        """Return what another group has in common with one of these nodes, and these plugins."""
        nodes = [(*each.ranks, each.addr, each.port, each.fingerprint) for each in self.nodes]
        return hashlib.sha256(repr((nodes, [*plugins])).encode()).hexdigest()[:16]

    def node_of(self, rank: int) -> Node:
        """Return the node of a rank of the cluster."""
        at = _index(self.ranks, rank, lambda each: each.rank)
        if at is None:
            raise KeyError(rank)
        place = _index(self.nodes, self.ranks[at].node, lambda each: each.node)
        assert place is not None
        return self.nodes[place]

    @property
    def group(self) -> bool:
        """Whether every rank is in the process group of this generation."""
        return self.generation > 0 and all(r.generation == self.generation for r in self.ranks)

    @property
    def settled(self) -> bool:
        """Whether every rank is alive and none is busy."""
        return all(rank.phase is RankPhase.IDLE for rank in self.ranks)


def _index(items: Sequence[T], number: int, number_of: Callable[[T], int]) -> int | None:
    """Return the index of a number among ``items``, which are sorted by number."""
    if 0 <= number < len(items) and number_of(items[number]) == number:
        return number  # no gaps before it, as usual
    at = bisect_left(items, number, key=number_of)
    return at if at < len(items) and number_of(items[at]) == number else None


def reduce(state: ClusterState, event: Event, own: Collection[int] = ()) -> ClusterState:
    """Return the state after ``event``.

    Parameters
    ----------
    state
        The state before.
    event
        The event.
    own
        The ranks of the node that reports it: about runs, its reports only count for these.
    """
    match event:
        case RunBegan(run, ranks):  # perhaps a run of another kernel
            for rank in among(ranks, own):
                state = _rank(state, rank, phase=RankPhase.RUNNING, run=run)
            return state
        case Lost(others=others) if others:
            # The end of its ranks' runs may be among them.
            return _idle(state, [rank for rank in state.ranks if rank.rank in own and rank.run])
        case RankStarted(rank, pid):
            return _rank(state, rank, phase=RankPhase.IDLE, pid=pid, generation=0, run=None)
        case RankExited(rank, _, reason, _, _, again):
            phase = RankPhase.GONE if again else RankPhase.DEAD
            return _rank(state, rank, phase=phase, pid=None, generation=0, run=None, trouble=reason)
        case RankDone():
            return ranks_done(state, [event])
        case Formed(rank, generation, None):
            return _rank(state, rank, generation=generation, trouble=None)
        case Queued(runs) if 0 in own:
            return replace(state, queue=tuple(runs))
        case Prepared(versions, missing):
            return replace(state, versions=tuple(versions.items()), missing=tuple(missing.items()))
    return state


def ranks_done(state: ClusterState, events: Iterable[RankDone]) -> ClusterState:
    """Return the state after ranks have finished their parts, with one copy for all."""
    ranks, cut_off = list(state.ranks), state.cut_off
    for event in events:
        cut_off = cut_off or event.stopped or event.outcome != "ok"
        at = _index(ranks, event.rank, _number)
        # An earlier run may end in events that a kernel reads again: see `attach`.
        if at is not None and (rank := ranks[at]).pid is not None:
            ranks[at] = _doing(rank, RankPhase.IDLE, None, 0 if event.broken else rank.generation)
    return _with(state, ranks=tuple(ranks), cut_off=cut_off)


def running(
    state: ClusterState, ranks: Sequence[int], run: str, is_whole: bool = False
) -> ClusterState:
    """Return the state after ``run`` was sent to ``ranks``, or all ranks have begun it together."""
    chosen = set(ranks)
    return _with(
        state,
        cut_off=state.cut_off and not is_whole,
        ranks=tuple(
            _doing(rank, RankPhase.RUNNING, run, rank.generation) if rank.rank in chosen else rank
            for rank in state.ranks
        ),
    )


def _doing(rank: RankState, phase: RankPhase, run: str | None, generation: int) -> RankState:
    # Three times as fast as `_replace`: it is done for each rank of each run.
    return RankState(rank.rank, rank.node, phase, rank.pid, generation, run, rank.trouble)


def _with(before: ClusterState, **changes: Any) -> ClusterState:
    """Return a state with some changes, ten times as fast as `replace`.

    It is done for each run, and setting fields of frozen classes is slow. The changes leave the
    numbers of the ranks as they are, so that `ClusterState.numbers` is kept where it is known.
    """
    after = object.__new__(ClusterState)
    vars(after).update(vars(before), **changes)
    return after


def _number(rank: RankState) -> int:
    return rank.rank


def not_begun(state: ClusterState, run: str, ranks: Collection[int]) -> ClusterState:
    """Return the state after the agent of ``ranks`` has refused a run that was sent to it."""
    return _idle(state, [each for each in state.ranks if each.rank in ranks and each.run == run])


def _idle(state: ClusterState, ranks: Sequence[RankState]) -> ClusterState:
    for rank in ranks:
        state = _rank(state, rank.rank, phase=RankPhase.IDLE, run=None)
    return state


def _rank(state: ClusterState, rank: int, **changes: Any) -> ClusterState:
    ranks = state.ranks
    at = _index(ranks, rank, lambda each: each.rank)
    if at is None:
        return state
    before = ranks[at]
    # The beginning of a run is known before the node reports it, and each change copies all ranks.
    if all(getattr(before, name) == value for name, value in changes.items()):
        return state
    return replace(state, ranks=(*ranks[:at], before._replace(**changes), *ranks[at + 1 :]))


@dataclass
class Formation:
    """The formation of the group.

    Attributes
    ----------
    lock
        Held while it is formed.
    errors
        The errors of ranks that could not join it.
    topology
        Its topology, if this kernel has formed it.
    outdated
        Whether another kernel has formed one since: ranks may have come and gone.
    has_additions
        Whether another kernel has added something to the cluster that this one has not taken up.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    errors: dict[int, ErrorReport] = field(default_factory=dict)
    topology: Topology | None = None
    outdated: bool = False
    has_additions: bool = False
