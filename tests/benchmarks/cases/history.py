"""What the History costs: the kernel's processor time, and bytes to each page that looks at it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from jupyter_sky.cluster.metrics.usage import Usage
from jupyter_sky.cluster.network import incoming
from jupyter_sky.providers.base import Node
from jupyter_sky.transport.frames import encode
from jupyter_sky.transport.metrics.usage_history import (
    EVERY,
    KEPT,
    RankSample,
    Sample,
    Samples,
    Sizes,
)
from tests.benchmarks.measure import Row, Target

_NODES, _RANKS = 16, 4  # on each
_SAMPLES = 3 * KEPT  # half an hour


def history(peers: bool) -> Iterator[Row]:
    """64 ranks with GPUs, all of whose figures change all the time, and a page that looks on."""
    nodes = [
        Node(at, f"10.0.0.{at}", "eth0", tuple(range(_RANKS * at, _RANKS * at + _RANKS)))
        for at in range(_NODES)
    ]
    agents = [Samples() for _ in nodes]
    usage = Usage()
    known = wire = page = 0
    spent = 0.0
    for at in range(_SAMPLES):
        parts = [_part(samples, node, at) for samples, node in zip(agents, nodes, strict=True)]
        wire += sum(len(encode({"report": [], "history": part})) for part in parts)
        before = time.process_time()
        for node, part in zip(nodes, parts, strict=True):
            usage.add([node], incoming.report({"report": [], "history": part}).of(node.ranks))
        answer = usage.history(nodes, known)
        text = json.dumps(answer)
        spent += time.process_time() - before
        known = answer["at"]
        page += len(text)
    seconds = _SAMPLES * EVERY
    whole = len(json.dumps(usage.history(nodes, 0)))
    what = "History of 64 ranks"
    yield Row(f"{what}: bytes from all nodes to the kernel", wire / seconds, "B/s")
    yield Row(f"{what}: bytes to a page that looks on", page / seconds, "B/s", Target(5000))
    yield Row(f"{what}: all of it, once to each page", whole / 1000, "kB", Target(500))
    yield Row(f"{what}: kernel's processor time", 100 * spent / seconds, "%", Target(1))


def _part(samples: Samples, node: Node, at: int) -> Any:
    time_of = int(1000 * EVERY * (at + 1))
    samples.sizes = Sizes(64, 512 * 10**9, dict.fromkeys(node.ranks, 80 * 10**9))
    ranks = {
        rank: RankSample(
            1 + (7 * at + rank) % 100 / 100,
            10**10 + 10**7 * (at % 997),
            (3 * at + rank) % 101 / 100,
            6 * 10**10 + 10**8 * (at % 83),
        )
        for rank in node.ranks
    }
    traffic = 10**9 + 10**6 * (at % 613)
    samples.add(Sample(time_of, at % 6400 / 100, 10**11 + 10**8 * at, traffic, ranks))
    return samples.after(time_of - 1)
