"""How long until four ranks are in a group: at first, over one ``import torch``, and again."""

from __future__ import annotations

import itertools
import os
import statistics

from tests.benchmarks.cases.contest import beside
from tests.benchmarks.measure import Base, Row, Target, alternate, interpreter, seconds, spread
from tests.benchmarks.notebook import SkyNotebook

_ROUNDS = 3

_AGAIN = 0.3  # seconds

_numbers = itertools.count()

_CELL = """%%sky --nodes 4
import torch.distributed as dist

assert dist.get_world_size() == 4
"""


def start(peers: bool) -> list[Row]:
    """From a cell that asks for a cluster to the end of that cell."""
    _import_torch()  # so that no file is read from the disk for the first time below
    before, starts = alternate(_import_torch, _start, rounds=_ROUNDS)
    imports = [*before, _import_torch()]
    again = [_start_again() for _ in range(_ROUNDS)]
    others = beside(peers, lambda report: report.start)
    return [
        Row(
            "start to a formed group of four ranks",
            statistics.median(starts),
            "s",
            Target(1.3, ratio=True),
            Base("import torch", statistics.median(imports)),
            others,
            f"{spread(starts)}; `python -c 'import torch'` before, between and after: "
            f"{spread(imports)}",
        ),
        Row(
            "the same where another cluster is or was a moment ago",
            statistics.median(again),
            "s",
            Target(_AGAIN),
            note=spread(again),
        ),
    ]


def _import_torch() -> float:
    return interpreter("import torch")


def _start() -> float:
    # What one start leaves for the next is not used with other variables.
    os.environ["BENCHMARK_START"] = str(next(_numbers))
    return _start_again()


def _start_again() -> float:
    with SkyNotebook() as notebook:
        return seconds(lambda: notebook.run(_CELL))
