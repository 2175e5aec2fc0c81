"""Stop, in what a GPU does: variables are kept, and the group is there for the next cell."""

from __future__ import annotations

import time

import pytest

from jupyter_sky.transport.protocol.events import Display, Output
from tests.cluster.cells import Cells
from tests.gpu.figures import Check

PREPARE = """
import time, torch, torch.distributed as dist
rank = dist.get_rank()
kept = torch.arange(4, device="cuda")
# Cycles of the GPU's clock that take a second, about: a kernel does nothing for so long.
torch.cuda.synchronize()
began = time.monotonic()
torch.cuda._sleep(500_000_000)
torch.cuda.synchronize()
second = int(500_000_000 / (time.monotonic() - began))
"""


@pytest.mark.parametrize(
    ("code", "within"),
    [
        pytest.param(
            "while True:\n    torch.cuda._sleep(second // 10); torch.cuda.synchronize()",
            2,
            id="short kernels",
        ),
        pytest.param(
            "torch.cuda._sleep(4 * second); torch.cuda.synchronize()", 7, id="a kernel of 4 s"
        ),
        pytest.param("while True:\n    kept.sum().item()", 2, id="a queue of kernels"),
        pytest.param(
            "x = torch.ones(2**24, device='cuda')\n"
            "while True:\n    dist.all_reduce(x); torch.cuda.synchronize()",
            3,
            id="collectives of nccl",
        ),
    ],
)
def test_stop(cells: Cells, check: Check, code: str, within: float) -> None:
    cells.run(PREPARE)
    pid = cells.cluster.state.ranks[0].pid
    taken = stopped(cells, code)
    check.note(f"{taken:.2f} s")
    assert cells.cluster.state.ranks[0].pid == pid
    assert cells.ask("kept.tolist()") == [[0, 1, 2, 3]]
    cells.run("x = torch.ones(1, device='cuda')\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [1.0]
    assert taken < within


def stopped(cells: Cells, code: str) -> float:
    """Press Stop when the head's first line arrives; return how long until no rank is busy."""
    run = cells.start(f"print('here', flush=True)\n{code}")
    pressed = 0.0

    def press(event: Output | Display) -> None:
        nonlocal pressed
        if not pressed:
            pressed = time.monotonic()
            cells.cluster.interrupt_run(run.id)

    run.follow(press)
    assert cells.cluster.wait_until_idle(60)
    taken = time.monotonic() - pressed
    with pytest.raises(KeyboardInterrupt):
        run.check()
    return taken
