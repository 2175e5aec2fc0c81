"""Values on their way to a host and back, on links of several speeds, beside scp on the same ones.

What a link carries beside its headers no program can exceed: scp, which does nothing else, tells.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.benchmarks.cases.machines import cluster_on, switched_on
from tests.benchmarks.cases.ssh.files import copy
from tests.benchmarks.measure import Base, Row, Target, alternate, seconds, spread
from tests.cluster.conftest import Cells
from tests.lab import Host, missing

_LINKS = {None: 256, 1000: 256, 200: 96, 20: 16}  # megabits a second: megabytes that are sent
_SLOW = 20
_ROUNDS = 3


def _lines() -> bytes:
    return b"".join(b"step %d, loss %.4f, rate 0.001\n" % (n, 9 / (n + 1)) for n in range(500_000))


def links(peers: bool) -> list[Row]:
    """Time beside scp, and how much crosses the wire."""
    if reason := missing():
        return [Row("links to hosts", None, "", note=reason)]
    rows: list[Row] = []
    with switched_on(1) as lab, cluster_on(lab) as cells:
        [host] = lab.hosts
        cells.run("import os, numpy as np")
        for megabits, megabytes in _LINKS.items():
            if megabits:
                host.slow_down(megabits)
            rows += _times(cells, megabytes, f" at {megabits} Mbit/s" if megabits else "")
        rows += _shares(cells, host)
    return rows


def _times(cells: Cells, megabytes: int, link: str) -> Iterator[Row]:
    size = megabytes * 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder, "sent")
        here.write_bytes(os.urandom(size))

        def push() -> float:
            cells.namespace["sent"] = np.frombuffer(os.urandom(size), np.uint8)
            return seconds(lambda: cells.run("pass", names=["sent"]))

        def fetch() -> float:
            cells.run(f"made = np.frombuffer(os.urandom({size}), np.uint8)")
            return seconds(lambda: cells.run("pass", values={0: ["made"]}))

        def scp(source: str, target: str) -> float:
            taken = copy("scp", source, target)
            return taken if isinstance(taken, float) else float("nan")

        ways = {
            "to": (push, lambda: scp(str(here), "lab1:sent")),
            "from": (fetch, lambda: scp("lab1:sent", f"{folder}/back")),
        }
        for way, both in ways.items():
            ours, theirs = alternate(*both, rounds=_ROUNDS)
            yield Row(
                f"{megabytes} MB as a value {way} a host{link}",
                statistics.median(ours),
                "s",
                Target(1.1, ratio=True),
                Base("scp", statistics.median(theirs)),
                note=spread(ours),
            )


def _shares(cells: Cells, host: Host) -> Iterator[Row]:
    """What crosses a slow link of what compresses, and of what does not."""
    host.slow_down(_SLOW)
    for what, data, limit in (
        ("lines of a log", _lines(), 0.4),
        ("noise", os.urandom(len(_lines())), 1.05),
    ):
        cells.namespace["sent"] = data
        sent = _crossed(host, 0, lambda: cells.run("pass", names=["sent"]))
        cells.run("made = sent[:-1]")
        back = _crossed(host, 1, lambda: cells.run("pass", values={0: ["made"]}))
        for way, crossed in (("to", sent), ("from", back)):
            yield Row(
                f"what crosses a link of {_SLOW} Mbit/s {way} a host, {what}",
                crossed / 1e6,
                "MB",
                Target(limit, ratio=True),
                Base("its size", len(data) / 1e6),
            )


def _crossed(host: Host, way: int, do: Callable[[], object]) -> int:
    before = host.carried()[way]
    do()
    return host.carried()[way] - before
