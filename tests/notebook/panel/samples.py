"""Snapshots to show: what a source of the panel would say."""

from __future__ import annotations

import copy
from typing import Any

from jupyter_sky.cluster.cost_meter import Unit
from jupyter_sky.cluster.snapshot import RankView, Snapshot

GB = 10**9

HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script>\x00\x07\x1b[31mred\x1b[0m"
    "\x1b]0;title\x07\u202eesrever\u2066\x9b1m &amp; </pre>"
)


def snapshot(nodes: int = 4, ranks_a_node: int = 1, gpu: str | None = None) -> Snapshot:
    """A cluster whose ranks are in the middle of an epoch."""
    ranks = [rank(number, number // ranks_a_node, gpu) for number in range(nodes * ranks_a_node)]
    return {
        "version": 1,
        "cluster": {
            "id": "c1",
            "name": "digits-3f2a",
            "provider": "aws" if gpu else "local",
            "phase": "ready",
            "note": "",
            "generation": 1,
            "nodes": nodes,
            "gpu": gpu,
            "price": 4.1 * len(ranks) if gpu else None,
            "cost": 1.37 if gpu else None,
            "unit": Unit.DOLLARS,
            "pages": [],
        },
        "run": {
            "id": "r1",
            "state": "running",
            "background": False,
            "started": 1.7e9,
            "seconds": 83.0,
            "ranks": [each["rank"] for each in ranks],
            "shown": [0],
            "title": "for epoch in range(epochs):",
            "cell": None,
            "progress": None,
            "cost": None,
            "trouble": None,
            "where": None,
            "warns": False,
            "attempt": None,
            "earlier": [],
        },
        "sent_bytes": 12_400_000,
        "nodes": [
            {"node": node, "addr": f"10.0.3.{17 + node}" if gpu else "127.0.0.1", "gpu": gpu}
            for node in range(nodes)
        ],
        "ranks": ranks,
        "output": {"rank": 0, "text": "\n".join(epochs(12)) + "\n"},
        "others": [],
        "curves": [],
    }


def changed(shown: Snapshot, **parts: Any) -> Snapshot:
    """A copy with some parts replaced; of a dict, as of a rank (`rank_2={...}`), what is given."""
    result: Any = copy.deepcopy(shown)
    for name, value in parts.items():
        if name.startswith("rank_"):
            result["ranks"][int(name.removeprefix("rank_"))].update(value)
        elif isinstance(value, dict):
            result[name].update(value)
        else:
            result[name] = value
    return result


def rank(number: int, node: int, gpu: str | None) -> RankView:
    wobble = (number * 37) % 29 / 100
    return {
        "rank": number,
        "node": node,
        "phase": "running",
        "utilisation": 0.71 + wobble if gpu else 0.93 - wobble / 2,
        "memory": (int((31 + wobble * 20) * GB), 40 * GB) if gpu else (int(1.2 * GB), 16 * GB),
        "gpu": number % 8 if gpu else None,
        "line": f"epoch 11: loss {0.31 + wobble / 10:.3f}, accuracy {0.93 - wobble / 20:.3f}",
        "trouble": None,
        "outcome": None,
        "seconds": None,
        "error": None,
        "progress": None,
        "restarted": False,
        "began_empty": False,
    }


def epochs(count: int) -> list[str]:
    return [
        f"\x1b[2mepoch {at:>2}\x1b[0m  loss \x1b[36m{2.3 / (at + 1):.3f}\x1b[0m"
        f"  accuracy \x1b[32m{1 - 0.7 / (at + 1):.3f}\x1b[0m  1.84 s"
        for at in range(count)
    ]
