"""What is measured of each peer, in a kernel of its own: ``print(trial.report(where))``."""

from __future__ import annotations

import json
import pkgutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from tests.benchmarks.measure import seconds
from tests.benchmarks.peers import Peer
from tests.benchmarks.peers.work import look

RANKS = 4
_WARM_UP = 20
_ROUND_TRIPS = 300
_ROUND_TRIPS_WITHIN = 10.0  # seconds; slow ones get fewer, and at least a tenth
_PUSHES = 5
_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Report:
    """Seconds that things took; each push is followed by one of the same, unchanged array."""

    start: float
    round_trips: list[float]
    pushes: list[float]
    pushes_again: list[float]


def report(where: str) -> str:
    """Measure one peer and return the report as JSON; ``where`` is its class."""
    peer: Peer = pkgutil.resolve_name(where)()
    start = seconds(lambda: peer.start(RANKS))
    try:
        round_trips = _round_trips(peer)
        pushes, again = _pushes(peer)
    finally:
        peer.stop()
    return json.dumps(asdict(Report(start, round_trips, pushes, again)))


def _round_trips(peer: Peer) -> list[float]:
    for _ in range(_WARM_UP):
        peer.round_trip()
    until = time.monotonic() + _ROUND_TRIPS_WITHIN
    taken: list[float] = []
    while len(taken) < _ROUND_TRIPS and (
        len(taken) < _ROUND_TRIPS // 10 or time.monotonic() < until
    ):
        taken.append(seconds(peer.round_trip))
    return taken


def _pushes(peer: Peer) -> tuple[list[float], list[float]]:
    """Push arrays of fresh content, each twice; the first array warms up and does not count."""
    first, again = [], []
    random = np.random.default_rng()
    for _ in range(1 + _PUSHES):
        array = random.integers(2**40, size=_BYTES // 8)
        expected = [look(array)] * RANKS
        pushed = _seen_after(partial(peer.push, array), expected)
        pushed_again = _seen_after(peer.push_again, expected)
        if pushed is None or pushed_again is None:
            return [], []
        first.append(pushed)
        again.append(pushed_again)
    return first[1:], again[1:]


def _seen_after(push: Callable[[], list[int] | None], expected: list[int]) -> float | None:
    """Return how long a push takes, and hold what the ranks saw against what was sent."""
    started = time.monotonic()
    seen = push()
    taken = time.monotonic() - started
    if seen is None:
        return None
    assert seen == expected, "what arrived is not what was sent"
    return taken
