"""Collectives that only some ranks have begun when a run ends well: the next does not meet them."""

from __future__ import annotations

import re
import textwrap
import weakref

import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls.batches import Batches
from jupyter_sky.api.calls.futures import Futures
from tests import waiting
from tests.cluster.cells import SUMMED
from tests.cluster.conftest import Cells

_GIVEN_UP = "was given up and the process group is formed again"


def _told(cells: Cells, code: str) -> list[str]:
    """Run a cell, and return what the user is told besides its output."""
    run = cells.start(code)
    told: list[str] = []
    run.follow(notice=told.append)
    return told


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "if rank == 0: work = dist.all_reduce(torch.ones(3), async_op=True)",
            r"rank 0 began all_reduce #\d+, and ranks 1-3 ended without",
        ),
        ("if rank > 1: work = dist.barrier(async_op=True)", "ranks 2-3 began barrier"),
        (
            "pair = dist.new_group([0, 1])\n"
            "if rank == 1: work = dist.broadcast(torch.ones(3), 0, pair, async_op=True)",
            "rank 1 began broadcast",
        ),
    ],
    ids=["on one", "on two", "in a group of two"],
)
def test_the_next_collective_does_not_meet_one_that_was_left(
    cells: Cells, code: str, said: str
) -> None:
    pids = cells.ask("os.getpid()")
    [told] = _told(cells, code)
    assert re.match(said, told) and _GIVEN_UP in told
    assert cells.ask(SUMMED) == [4.0] * 4
    assert cells.ask("os.getpid()") == pids


def test_calls_may_leave_one_too(cells: Cells) -> None:
    @sky.compute
    def begin() -> None:
        import torch

        torch.distributed.barrier(async_op=True)

    batches = Batches(cells.cluster, (), sky.Worker(), [].append, weakref.WeakSet())
    Futures(batches).submit(begin()).result(waiting.PATIENCE)
    waiting.until(lambda: not cells.cluster.state.busy_runs)
    assert cells.ask(SUMMED) == [4.0] * 4


def test_one_that_all_have_begun_is_left_for_a_later_cell(cells: Cells) -> None:
    # The numbers of ranks differ by a message between two of them.
    code = """
    x = torch.ones(1)
    if rank == 2: dist.send(x, 3)
    if rank == 3: dist.recv(x, 2)
    work = dist.all_reduce(x, async_op=True)
    """
    assert _told(cells, textwrap.dedent(code)) == []
    cells.run("work.wait()")
    assert cells.ask("x.item()") == [4.0] * 4


def test_one_that_a_thread_may_still_begin_is_left(cells: Cells) -> None:
    code = """
    import threading
    x, may_begin = torch.ones(1), threading.Event()
    def begin():
        may_begin.wait()
        dist.all_reduce(x)
    if rank: (others := threading.Thread(target=begin)).start()
    else: work = dist.all_reduce(x, async_op=True)
    """
    assert _told(cells, textwrap.dedent(code)) == []
    cells.run("may_begin.set()\nothers.join() if rank else work.wait()")
    assert cells.ask("x.item()") == [4.0] * 4
