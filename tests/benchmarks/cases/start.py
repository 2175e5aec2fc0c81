"""How long until four ranks are in a group, over one ``import torch`` in the same run."""

from __future__ import annotations

import statistics

from tests.benchmarks.cases.contest import beside
from tests.benchmarks.measure import Base, Row, Target, alternate, interpreter, seconds, spread
from tests.benchmarks.notebook import SkyNotebook

_ROUNDS = 3

_CELL = """%%sky --nodes 4
import torch.distributed as dist

assert dist.get_world_size() == 4
"""


def start(peers: bool) -> list[Row]:
    """From a cell that asks for a cluster to the end of that cell."""
    _import_torch()  # so that no file is read from the disk for the first time below
    before, starts = alternate(_import_torch, _start, rounds=_ROUNDS)
    imports = [*before, _import_torch()]
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
        )
    ]


def _import_torch() -> float:
    return interpreter("import torch")


def _start() -> float:
    with SkyNotebook() as notebook:
        return seconds(lambda: notebook.run(_CELL))
