"""Errors of CUDA are errors of the cell, and the rank goes on."""

from __future__ import annotations

import pytest

from tests.cluster.cells import Cells
from tests.gpu.figures import Check

pytestmark = pytest.mark.alone

ASSERTS = "torch.zeros(2, device='cuda')[torch.tensor([5], device='cuda')].cpu()"


@pytest.fixture
def cells(cells: Cells) -> Cells:
    cells.run("import torch\nkept = 1")
    return cells


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"


@pytest.mark.parametrize(
    "code",
    [
        "torch.empty(2**50, dtype=torch.uint8, device='cuda')",
        "blocks = []\nwhile True:\n    blocks.append(torch.empty(2**32, device='cuda'))",
    ],
    ids=["at once", "little by little"],
)
def test_too_little_memory_is_an_error_and_the_rank_goes_on(
    cells: Cells, check: Check, code: str
) -> None:
    pid = cells.cluster.state.ranks[0].pid
    with pytest.raises(RuntimeError, match="out of memory|Tried to allocate") as caught:
        cells.run(code)
    check.note(_first_line(caught.value))
    assert cells.cluster.state.ranks[0].pid == pid
    # What the failed cell had is free again once its names are gone.
    cells.run("blocks = None\ntorch.cuda.empty_cache()\nx = torch.ones(2**20, device='cuda').sum()")
    assert cells.ask("(kept, x.item())") == [(1, float(2**20))]


def test_a_wrong_device_is_an_error_and_the_rank_goes_on(cells: Cells, check: Check) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal|device") as caught:
        cells.run("torch.ones(1, device='cuda:77')")
    check.note(_first_line(caught.value))
    assert cells.ask("torch.ones(1, device='cuda').item()") == [1.0]


def test_a_failed_assertion_on_the_gpu_leaves_the_rank_and_restart_mends_its_gpu(
    cells: Cells, check: Check
) -> None:
    pid = cells.cluster.state.ranks[0].pid
    with pytest.raises(RuntimeError, match="device-side assert|CUDA error") as caught:
        cells.run(ASSERTS)
    check.note(_first_line(caught.value))
    # CUDA is of no use to that process any more; what is in its own memory is.
    assert cells.cluster.state.ranks[0].pid == pid
    assert cells.ask("kept") == [1]
    cells.cluster.restart()
    cells.run("import torch")
    assert cells.ask("torch.ones(1, device='cuda').item()") == [1.0]
