"""The resource usage of a cluster's ranks: now, and in the last ten minutes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_sky.cluster.network.incoming import Report
from jupyter_sky.cluster.snapshot import History, NodeHistory
from jupyter_sky.providers.base import Node
from jupyter_sky.transport.metrics.usage_history import (
    RankSample,
    Sample,
    Samples,
    Sizes,
    column,
    rank_columns,
    rounded,
)
from jupyter_sky.transport.protocol.inspection import RankUsage


@dataclass(frozen=True)
class _Machine:
    """A machine.

    Attributes
    ----------
    samples
        Its samples.
    nodes
        The nodes on it.
    shift
        Milliseconds by which its clock is behind the notebook's, to align the curves of several
        machines.
    """

    samples: Samples
    nodes: tuple[Node, ...]
    shift: int


class Usage:
    """The resource usage of a cluster's ranks."""

    def __init__(self) -> None:
        self._latest: dict[int, RankUsage] = {}
        self._machines: dict[int, _Machine] = {}
        self._arrived = 0

    def add(self, nodes: Sequence[Node], report: Report) -> bool:
        """Add a machine's report about itself and its ranks.

        Parameters
        ----------
        nodes
            The nodes on the machine.
        report
            The report.

        Returns
        -------
        bool
            Whether the report has the present usage of ranks.
        """
        self._latest.update({entry["rank"]: entry for entry in report.ranks})
        if report.history and nodes:
            # No two samples may have the same arrival time.
            self._arrived = max(self._arrived + 1, int(1000 * time.time()))
            known = self._machines.get(nodes[0].node)
            samples = known.samples if known else Samples()
            samples.add_part(report.history, self._arrived)
            shift = known.shift if known else self._arrived - samples.last
            self._machines[nodes[0].node] = _Machine(samples, tuple(nodes), shift)
        return bool(report.ranks)

    def latest(self) -> Mapping[int, RankUsage]:
        """Return the present usage of each rank, as far as known, as a snapshot."""
        return dict(self._latest)

    def forget(self, rank: int) -> None:
        """Forget a rank that is gone."""
        self._latest.pop(rank, None)

    def forget_lines(self, ranks: Iterable[int]) -> None:
        """Forget the last lines of ranks, because they begin a new run."""
        for rank in ranks:
            if rank in self._latest:
                self._latest[rank] = {**self._latest[rank], "line": ""}

    def history(self, nodes: Sequence[Node], since: int) -> History:
        """Return the usage in the last ten minutes.

        Parameters
        ----------
        nodes
            The nodes of the cluster.
        since
            The ``at`` of the previous answer; 0 for everything.
        """
        there = {node.node: node for node in nodes}
        # A restarted kernel has another clock: data that a page has from the former one is old.
        since = since if since <= self._arrived else 0
        found = [
            view
            for machine in list(self._machines.values())
            if (samples := machine.samples.arrived_after(since))
            for view in _views(machine, samples, there)
        ]
        return {"at": self._arrived, "nodes": sorted(found, key=lambda each: each["node"])}


def _views(
    machine: _Machine, samples: Sequence[Sample], there: Mapping[int, Node]
) -> Iterable[NodeHistory]:
    sizes = machine.samples.sizes
    nodes = [there[node.node] for node in machine.nodes if node.node in there]
    for node in nodes:
        own = samples if len(machine.nodes) == 1 else [_share(each, node) for each in samples]
        yield _view(node, own, sizes, machine.shift)


def _view(node: Node, samples: Sequence[Sample], sizes: Sizes, shift: int) -> NodeHistory:
    ranks = [rank for rank in node.ranks if any(rank in each.ranks for each in samples)]
    return {
        "node": node.node,
        "times": [each.time + shift for each in samples],
        "processors": sizes.processors,
        "memory_total": sizes.memory,
        "processor": column((each.processor for each in samples), lambda value: round(value, 2)),
        "memory": column((each.memory for each in samples), rounded),
        "network": column((each.network for each in samples), rounded),
        "ranks": [
            rank_columns(rank, [each.ranks.get(rank, _NOTHING) for each in samples], sizes)
            for rank in ranks
        ],
    }


_NOTHING = RankSample()


def _share(sample: Sample, node: Node) -> Sample:
    """Return the usage of a node that shares its machine: the sum of its ranks."""
    ranks = {rank: sample.ranks[rank] for rank in node.ranks if rank in sample.ranks}
    return Sample(
        sample.time,
        _total([each.processor for each in ranks.values()]),
        _total([each.memory for each in ranks.values()]),
        None,  # traffic is not counted per process
        ranks,
        sample.arrived,
    )


def _total(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
