"""Ours beside its peers: each is measured once, in a kernel of its own."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import cache

from tests.benchmarks.cases.hops import hops
from tests.benchmarks.measure import Row, Target, fastest, percentile, spread
from tests.benchmarks.notebook import Notebook
from tests.benchmarks.peers import OTHERS, OURS, Entry
from tests.benchmarks.peers.trial import RANKS, Report

_TRIAL = """
from tests.benchmarks.peers import trial
_said = trial.report({where!r})
print("\\n" + _said)
"""
_WITHIN = 600.0
_AGAIN = "… again, unchanged (which jupyter_sky checks)"


@cache
def trial(entry: Entry) -> Report:
    """Measure one of them in a fresh kernel."""
    print(f"  {entry.name} …", file=sys.stderr)
    with Notebook() as notebook:
        cell = notebook.run(_TRIAL.format(where=entry.where), within=_WITHIN)
    return Report(**json.loads(cell.text.splitlines()[-1]))


@cache
def _trial_of_peer(entry: Entry) -> Report | str:
    if not entry.installed:
        return "not installed"
    try:
        return trial(entry)
    except Exception as error:  # a peer that does not work here must not end the run
        print(f"  {entry.name} failed: {error}", file=sys.stderr)
        return "failed"


def beside(peers: bool, figure: Callable[[Report], float | None]) -> Mapping[str, float | str]:
    """Return a figure of every peer, or in words why there is none."""
    figures: dict[str, float | str] = {}
    for entry in OTHERS if peers else ():
        report = _trial_of_peer(entry)
        value = report if isinstance(report, str) else figure(report)
        figures[entry.name] = "cannot" if value is None else value
    return figures


def round_trip(peers: bool) -> list[Row]:
    """How long a cell takes that does nothing."""
    ours = trial(OURS).round_trips
    others = beside(peers, lambda report: 1000 * statistics.median(report.round_trips))
    return [
        Row(
            "round trip of an empty cell, median",
            1000 * statistics.median(ours),
            "ms",
            Target(1),
            fastest(others),
            others,
            f"{spread(ours, 'ms', 1000)}, 95th percentile {1000 * percentile(ours, 95):.2f} ms",
        ),
        Row(
            "… its messages alone, through as many threads and processes",
            1000 * statistics.median(hops(RANKS)),
            "ms",
        ),
    ]


def push(peers: bool) -> list[Row]:
    """How long until all ranks have a large array, new to them or not."""
    return [
        _push("256 MB array usable on all ranks", 0.25, peers, lambda r: r.pushes),
        _push(_AGAIN, 0.08, peers, lambda r: r.pushes_again),
    ]


def _push(what: str, limit: float, peers: bool, taken: Callable[[Report], list[float]]) -> Row:
    others = beside(peers, lambda r: statistics.median(taken(r)) if taken(r) else None)
    ours = taken(trial(OURS))
    return Row(
        what, statistics.median(ours), "s", Target(limit), fastest(others), others, spread(ours)
    )
