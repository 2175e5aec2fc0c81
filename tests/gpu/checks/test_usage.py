"""What panel and History show of a GPU, against `nvidia-smi` at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.cells import Cells
from tests.gpu.figures import Check
from tests.gpu.machine import smi
from tests.waiting import until

pytestmark = pytest.mark.alone

MIB = 2**20

BUSY = """
import torch
kept = torch.empty(3 * 2**30, dtype=torch.uint8, device="cuda")
a = torch.randn(4096, 4096, device="cuda")
while True:
    b = a @ a
    torch.cuda.synchronize()
"""


def test_the_panel_shows_what_nvidia_smi_does(cells: Cells, check: Check) -> None:
    run = cells.start(BUSY)
    rank = until(lambda: _busy(cells))
    rows = smi("utilization.gpu,memory.used,memory.total")
    assert not isinstance(rows, str), rows
    theirs, used, total = map(float, rows[0])
    rank = until(lambda: _busy(cells))
    ours, [our_used, our_total] = 100 * rank["utilisation"], rank["memory"]
    history = until(lambda: _gpu_history(cells))
    cells.cluster.interrupt_run(run.id)
    assert cells.cluster.wait_until_idle(60)
    check.note(
        f"busy {ours:.0f} %, nvidia-smi {theirs:.0f} %; used {our_used / MIB:.0f} of "
        f"{our_total / MIB:.0f} MiB, nvidia-smi {used:.0f} of {total:.0f}"
    )
    assert rank["gpu"] == 0
    assert theirs > 50
    assert abs(our_used / MIB - used) < 256
    assert abs(our_total / MIB - total) < 2
    assert max(history) > 0.5


def _busy(cells: Cells) -> Any:
    """Return what is shown of the rank, as soon as its GPU is seen to work."""
    rank = cells.cluster.snapshot()["ranks"][0]
    busy, memory = rank["utilisation"], rank["memory"]
    return rank if busy and busy > 0.5 and memory and memory[0] > 3 * 2**30 else None


def _gpu_history(cells: Cells) -> list[float] | None:
    usage = cells.cluster.usage.history(cells.cluster.state.nodes, 0)
    found = [
        value
        for node in usage["nodes"]
        for rank in node["ranks"]
        for value in rank["gpu"]
        if value is not None
    ]
    return found if found and max(found) > 0.5 else None
