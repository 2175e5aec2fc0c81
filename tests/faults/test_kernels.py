"""Kernels that are killed or frozen, and two that take up the same cluster."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil

from jupyter_sky.cluster.errors import Interrupted
from tests.cluster.conftest import Cells
from tests.faults.other_kernel import running_kernel
from tests.faults.parts import attach
from tests.waiting import PATIENCE


def follow_until_stopped(cells: Cells, lines: int) -> list[int]:
    """Follow the run that another kernel began, stop it, and return what it printed."""
    run = cells.cluster.pop_unseen_run()
    assert run is not None

    def show(event) -> None:
        cells.events.append(event)
        if cells.text().count("\n") > lines:
            run.stop()

    with contextlib.suppress(Interrupted):
        run.follow(show)
    return [int(line) for line in cells.text().split()]


def test_a_killed_kernel_is_followed_by_another_which_misses_nothing() -> None:
    with running_kernel("killed") as kernel:
        kernel.kill()
        cells = attach("killed")
    try:
        numbers = follow_until_stopped(cells, 50)
        assert numbers == list(range(len(numbers)))
        cells.run("print('next')")
        assert cells.text() == "next\n"
    finally:
        cells.cluster.down()


def test_a_frozen_kernel_gets_all_output_when_it_goes_on() -> None:
    with running_kernel("frozen") as kernel:
        process = psutil.Process(kernel.pid)
        process.suspend()
        cells = attach("frozen")
        try:
            numbers = follow_until_stopped(cells, 50)
            assert numbers == list(range(len(numbers)))
            process.resume()
            # It learns that its run was stopped, and ends.
            assert kernel.wait(PATIENCE) == 0
            cells.run("pass")
        finally:
            cells.cluster.down()


def test_two_kernels_may_take_a_cluster_up_at_once(new) -> None:
    cells = new(nodes=2, framework=False)
    name = cells.cluster.name
    cells.cluster.close()
    both: list[Cells] = []
    threads = [threading.Thread(target=lambda: both.append(attach(name))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for turn in range(3):
        for index, each in enumerate(both):
            each.run(f"x{index} = {turn}")
    assert both[0].ask("(x0, x1)") == [(2, 2)] * 2
    both[0].cluster.close()
    both[1].cluster.down()


def test_two_kernels_that_begin_a_run_at_once_take_turns(new) -> None:
    cells = new(nodes=1, framework=False)
    both, at_once = [cells, attach(cells.cluster.name)], threading.Barrier(2)

    def begin(each: Cells) -> list[float]:
        at_once.wait()
        return each.ask("(time.monotonic(), time.sleep(0.02), time.monotonic())[::2]")[0]

    cells.run("import time")
    with ThreadPoolExecutor() as pool:
        for _ in range(10):  # most often, neither knows yet that the other has begun
            (_, end), (start, _) = sorted(pool.map(begin, both))
            assert end <= start
    both[1].cluster.close()
    both[0].cluster.down()
