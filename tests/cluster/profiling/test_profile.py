"""Profiles of runs that go on: the line that is hot, and what each rank spends its time on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.profiling.profile import Frame, Profile
from jupyter_sky.cluster.profiling.profiler import RATE
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.errors import UsageError
from tests.cluster.conftest import Cells
from tests.waiting import until


@contextmanager
def _running(cells: Cells, code: str, folder: Path) -> Iterator[RunHandle]:
    """Run a cell that is stopped afterwards; its ranks have come to ``begun()`` then."""
    prepare = f"def begun():\n    open({str(folder)!r} + f'/{{rank}}', 'w').close()\n"
    run = cells.start(prepare + code)
    try:
        until(lambda: run.finished or len(list(folder.iterdir())) >= 4)
        assert not run.finished
        yield run
    finally:
        cells.cluster.interrupt_run(run.id)
        run.follow()


def _profile(
    cells: Cells,
    code: str,
    folder: Path,
    enough: Callable[[Profile], bool],
    ranks: Sequence[int] = (0, 1, 2, 3),
) -> Profile:
    """Return a profile of a cell that shows enough: a machine may give a rank no time for long."""
    found: list[Profile] = []

    def is_enough() -> bool:
        found.append(cells.cluster.profiler.profile(1.0, ranks))
        return enough(found[-1])

    with _running(cells, code, folder):
        until(is_enough, within=150)
    return found[-1]


def _of_seen(profile: Profile, rank: int) -> Mapping[str, float]:
    """Return what a rank did, as parts of what was seen of it in the cell."""
    shares = next(each.shares for each in profile.ranks if each.rank == rank)
    seen = 1 - shares["other"] - shares["outside"]
    return {each: share / max(seen, 1e-9) for each, share in shares.items()}


def _of_line(profile: Profile, frame: Frame, ranks: Sequence[int]) -> list[float]:
    """Return the parts of their time that ranks spent in a line of the user."""
    return [
        sum(stack.count for stack in each.stacks if stack.frames[-1:] == (frame,)) / each.asked
        for each in profile.ranks
        if each.rank in ranks
    ]


def test_the_hot_line_is_first_and_equal_ranks_are_together(cells: Cells, tmp_path: Path) -> None:
    code = """import math
def hot(n):
    return sum(math.sin(each) for each in range(n))
def cold():
    time.sleep(0.001)
begun()
while True:
    hot(400_000)  # on a machine with much to do, a rank sleeps much longer than it asks for
    cold()"""

    def enough(found: Profile) -> bool:
        # Of a rank that gets no time little is seen, and that is what the sentence says.
        seen = all(_of_seen(found, rank)["compute"] > 0.6 for rank in range(4))
        return seen and "compute" in found.sentence

    found = _profile(cells, code, tmp_path, enough)
    hottest, *others = found.hot_lines()
    assert (hottest.frame.place, hottest.frame.line) == ("the cell", 5)
    assert "hot" in hottest.frame.function
    assert "math.sin(each)" in hottest.frame.text
    # More than half of what was seen is computing, and nothing else computes.
    assert hottest.share > sum(line.share for line in others)
    seen = [1 - each.shares["other"] - each.shares["outside"] for each in found.ranks]
    assert hottest.share <= sum(seen) / len(seen) + 1e-9
    assert all(0 < rank.came <= rank.asked <= 2 * RATE for rank in found.ranks)


def test_the_rank_that_sleeps_is_said_to_wait_and_the_others_for_it(
    cells: Cells, tmp_path: Path
) -> None:
    code = """begun()
while True:
    if rank == 2:
        time.sleep(0.2)
    dist.all_reduce(torch.ones(3))"""

    def enough(found: Profile) -> bool:
        lines = {each.frame.text: each.ranks for each in found.hot_lines()}
        return (
            found.sentence.startswith("ranks 0-1, 3 spend ")
            and found.sentence.endswith("% waiting")
            and _of_seen(found, 2)["waiting"] > 0.5
            and all(_of_seen(found, rank)["communication"] > 0.5 for rank in (0, 1, 3))
            and lines.get("dist.all_reduce(torch.ones(3))") == (0, 1, 3)
        )

    found = _profile(cells, code, tmp_path, enough)
    assert "of the time in communication, where they wait for rank 2: " in found.sentence
    lines = {each.frame.text: each.ranks for each in found.hot_lines()}
    assert lines["time.sleep(0.2)"] == (2,)


def test_a_collective_that_is_waited_for_in_c_code_is_communication(
    cells: Cells, tmp_path: Path
) -> None:
    code = """begun()
while True:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    if rank == 1:
        time.sleep(0.5)
    work.wait()"""

    def enough(found: Profile) -> bool:
        return _of_seen(found, 0)["communication"] > 0.5 and _of_seen(found, 1)["waiting"] > 0.5

    _profile(cells, code, tmp_path, enough)


def test_loading_data_is_told_apart_and_ranks_can_be_chosen(cells: Cells, tmp_path: Path) -> None:
    code = """import torch.utils.data
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000000
    def __getitem__(self, index):
        time.sleep(0.002)
        return index
begun()
for batch in torch.utils.data.DataLoader(Data(), batch_size=4):
    pass"""

    def enough(found: Profile) -> bool:
        return _of_seen(found, 1)["data"] > 0.8 and "data loading" in found.sentence

    found = _profile(cells, code, tmp_path, enough, ranks=(1,))
    assert [each.rank for each in found.ranks] == [1]


def test_a_cell_that_awaits_is_at_the_line_that_does(cells: Cells, tmp_path: Path) -> None:
    code = """import asyncio
async def work():
    begun()
    await asyncio.sleep(600)
async def both():
    await asyncio.gather(work(), asyncio.sleep(600))
if rank == 1:
    await work()
else:
    await both()"""
    found = _profile(cells, code, tmp_path, lambda found: len(found.hot_lines()) == 2, (0, 1))
    assert {(each.frame.text, each.ranks) for each in found.hot_lines()} == {
        ("await asyncio.sleep(600)", (1,)),
        ("await asyncio.gather(work(), asyncio.sleep(600))", (0,)),
    }
    assert all(_of_seen(found, rank)["waiting"] > 0.5 for rank in (0, 1))


def test_what_other_threads_do_is_found(cells: Cells, tmp_path: Path) -> None:
    code = """from concurrent.futures import ThreadPoolExecutor
going_on = True
def work(number):
    while going_on:
        time.sleep(0.01)
try:
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(work, range(2))
        begun()
        list(results)
finally:
    going_on = False"""

    def enough(found: Profile) -> bool:
        lines = {each.frame.text: each for each in found.thread_lines()}
        slept = lines.get("time.sleep(0.01)")
        return slept is not None and slept.share > 0.5 and slept.ranks == (0, 1)

    found = _profile(cells, code, tmp_path, enough, ranks=(0, 1))
    assert found.hot_lines()[0].frame.text == "list(results)"
    assert all(each.share <= 1 for each in found.thread_lines())


def test_ranks_without_a_part_in_the_run_take_none_in_its_profile(cells: Cells) -> None:
    run = cells.start("while True:\n    time.sleep(0.01)", ranks=(1, 2))
    try:

        def both() -> Any:  # on a busy machine, one of them comes to the line later than the other
            found = cells.cluster.profiler.profile(0.5, (0, 1, 2, 3))
            return found if any(line.ranks == (1, 2) for line in found.hot_lines()[:1]) else None

        found = until(both)
    finally:
        cells.cluster.interrupt_run(run.id)
        run.follow()
    assert [each.rank for each in found.ranks] == [1, 2]
    assert found.without == ["ranks 0, 3: nothing is running there"]
    [hottest, *_] = found.hot_lines()
    assert hottest.share == pytest.approx(sum(_of_line(found, hottest.frame, (1, 2))) / 2)


def test_c_code_that_keeps_the_interpreter_to_itself_is_found(cells: Cells, tmp_path: Path) -> None:
    way = tmp_path / "way"
    seen = tmp_path / "seen"
    os.mkfifo(way)
    seen.mkdir()
    code = f"""import ctypes
libc = ctypes.PyDLL(None)
def held():
    with open({str(way)!r}, "rb") as file:
        libc.read(file.fileno(), ctypes.create_string_buffer(1), 1)
begun()
if rank == 1:
    held()
else:
    time.sleep(600)"""
    with _running(cells, code, seen):
        with way.open("wb") as file:

            def profile() -> Profile | None:
                found = cells.cluster.profiler.profile(4.0, (0, 1))
                return found if [each.rank for each in found.ranks if each.stuck] == [1] else None

            found = until(profile, within=120)
            file.write(b"x")
        assert found.came.endswith(
            "samples came: on rank 1 a call into C let no other Python code run; its stack, which "
            "the system wrote, stands for that time"
        )
        assert any(
            each.frame.function == "held" and each.ranks == (1,) for each in found.hot_lines()
        )


def test_a_run_that_ends_meanwhile_and_ctrl_c_show_what_has_come(
    cells: Cells, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    run = cells.start(f"while not os.path.exists({str(end)!r}):\n    time.sleep(0.01)")
    stopped = cells.cluster.profiler.profile(
        300, (0, 3), begun=lambda: signal.raise_signal(signal.SIGINT)
    )
    assert not stopped.is_cut
    found = cells.cluster.profiler.profile(300, (0, 3), begun=end.touch)
    assert found.is_cut
    assert found.seconds < 300
    run.follow()
    with pytest.raises(UsageError, match=r"nothing is running: start a cell with `%%sky --back"):
        cells.cluster.profiler.profile(1, (0, 1, 2, 3))
    with pytest.raises(UsageError, match=r"nothing is running on rank 3: "):
        cells.cluster.profiler.profile(1, (3,))
