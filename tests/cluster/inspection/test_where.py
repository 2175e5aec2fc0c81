"""Where ranks are that hang, and what is said of it: each way to hang has its sentence."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.cluster.errors import RankLost, RemoteError
from jupyter_sky.cluster.inspection.findings import Findings
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import CellPlace, Task
from tests.cluster.conftest import Cells
from tests.waiting import until


def _hang(cells: Cells, code: str, sentence: str, title: str = "") -> Findings:
    """Run a cell that hangs, until this is said of it, and stop it; return all that was said."""
    return _until_said(cells, cells.start(code, title=title), sentence)


def _until_said(cells: Cells, run: RunHandle, sentence: str) -> Findings:
    said: list[Findings] = []

    def is_said() -> bool:
        assert not run.finished
        said.append(cells.cluster.where())
        return bool(re.fullmatch(sentence, said[-1].sentence))

    try:
        until(is_said)
    except AssertionError:
        text = said[-1].text if said else "nothing"
        raise AssertionError(f"{text}\n\nis not\n\n{sentence}") from None
    finally:
        cells.cluster.interrupt_run(run.id)
        run.follow()
    return said[-1]


def test_a_rank_that_skips_an_all_reduce(cells: Cells) -> None:
    code = """t = torch.ones(4, 5)
for step in range(3):
    if not (rank == 2 and step == 2):
        dist.all_reduce(t)"""
    said = _hang(
        cells,
        code,
        r"ranks 0-1, 3 wait in all_reduce #\d+ \(the cell, line 4\) for \d+ (?:s|min); "
        r"rank 2 has finished without it",
    )
    assert re.search(
        r"   ranks 0-1, 3\n      all_reduce #\d+, float32 \[4, 5\], of ranks 0-3\n"
        r"      distributed_c10d.py, line \d+ in all_reduce\n"
        r"      the cell, line 4: dist.all_reduce\(t\)",
        said.text,
    ), said.text


def test_tensors_of_different_shapes(cells: Cells) -> None:
    # gloo lets the others go on: they had what they waited for.
    _hang(
        cells,
        "dist.all_reduce(torch.ones(5 if rank == 2 else 4))",
        r"rank 2 waits in all_reduce #(\d+) \(the cell, line 1\) for \d+ (?:s|min); "
        r"ranks 0-1, 3 have finished; the tensors of #\1 differ: float32 \[4\] on ranks 0-1, "
        r"3 and float32 \[5\] on rank 2",
    )


def test_a_rank_that_awaits(cells: Cells) -> None:
    code = """import asyncio
async def step():
    await asyncio.sleep(600)
if rank == 2:
    await step()
dist.barrier()"""
    said = _hang(
        cells,
        code,
        r"ranks 0-1, 3 wait in barrier #\d+ \(the cell, line 6\) for \d+ (?:s|min); "
        r"rank 2 is in sleep \(the cell, line 3\)",
    )
    assert "the cell, line 3 in step: await asyncio.sleep(600)" in said.text


def test_a_rank_that_sleeps(cells: Cells) -> None:
    code = "def step():\n    if rank == 2:\n        time.sleep(600)\n    dist.barrier()\nstep()"
    _hang(
        cells,
        code,
        r"ranks 0-1, 3 wait in barrier #\d+ \(the cell, line 4\) for \d+ (?:s|min); "
        r"rank 2 is at `time.sleep\(600\)` \(the cell, line 3\)",
    )


@pytest.mark.parametrize("line", ["!sleep 600", "x = !sleep 600", "%time time.sleep(600)"])
def test_a_rank_in_a_line_that_is_not_python(cells: Cells, line: str) -> None:
    said = _hang(
        cells,
        f"if rank == 2:\n    {line}\ndist.barrier()",
        r"ranks 0-1, 3 wait in barrier #\d+ \(the cell, line 3\) for \d+ (?:s|min); "
        rf"rank 2 is at `{re.escape(line)}` \(the cell, line 2\)",
    )
    assert f"   rank 2\n      the cell, line 2: {line}" in said.text


_ENDLESS = """import re
def spin():
    re.match("(a+)+$", 40 * "a" + "b")
if rank == 2:
    spin()
dist.all_reduce(torch.ones(3))"""


def test_a_rank_in_c_code_that_holds_the_interpreter(cells: Cells) -> None:
    _hang(
        cells,
        _ENDLESS,
        r"ranks 0-1, 3 wait in all_reduce #\d+ \(the cell, line 6\) for \d+ (?:s|min); "
        r"rank 2 is in match \(the cell, line 3\), inside a call into C that lets no other Python "
        r"code run",
    )


def test_a_dataloader_that_waits_for_a_worker(cells: Cells) -> None:
    code = """import torch.utils.data
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if rank == 2:
            time.sleep(600)
        return index
for batch in torch.utils.data.DataLoader(Data(), num_workers=1):
    dist.all_reduce(torch.ones(3))"""
    _hang(
        cells,
        code,
        r"ranks 0-1, 3 wait in all_reduce #\d+ \(the cell, line 10\) for \d+ (?:s|min); "
        r"rank 2 is in DataLoader.__next__ \(the cell, line 9\)",
    )


def test_a_barrier_in_one_branch(cells: Cells) -> None:
    code = "if rank == 0:\n    dist.barrier()\nprint('done')"
    _hang(
        cells,
        code,
        r"rank 0 waits in barrier #\d+ \(the cell, line 2\) for \d+ (?:s|min); "
        r"ranks 1-3 have finished without it",
    )


def test_other_operations_at_the_same_number(cells: Cells) -> None:
    code = "t = torch.ones(3)\nif rank:\n    dist.all_reduce(t)\nelse:\n    dist.barrier()"
    _hang(
        cells,
        code,
        r"ranks 1-3 wait in all_reduce #(\d+) \(the cell, line 3\) for \d+ (?:s|min); "
        r"rank 0 waits in barrier #\1 \(the cell, line 5\) for \d+ (?:s|min); "
        r"these do not belong together: #\1 is barrier on rank 0 and all_reduce on ranks 1-3",
    )


def test_a_rank_that_waits_for_another_to_send(cells: Cells) -> None:
    code = "if rank == 1:\n    dist.recv(torch.ones(3), 3)\nif rank == 3:\n    time.sleep(600)"
    _hang(
        cells,
        code,
        r"rank 1 waits in recv \(the cell, line 2\) for \d+ (?:s|min); "
        r"rank 3 is at `time.sleep\(600\)` \(the cell, line 4\)",
    )


def test_a_dataloader_whose_worker_has_died(cells: Cells) -> None:
    code = """import torch.utils.data
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if rank == 2:
            os._exit(3)
        return index
for batch in torch.utils.data.DataLoader(Data(), num_workers=1):
    dist.all_reduce(torch.ones(3))"""
    with pytest.raises(RemoteError, match=r"DataLoader worker .* exited unexpectedly") as caught:
        cells.run(code)
    assert caught.value.rank == 2


def test_a_rank_that_was_killed(cells: Cells) -> None:
    # Not SIGKILL: beside a test that lacks memory, that is taken for the system's.
    code = "import signal\nif rank == 2:\n    os.kill(os.getpid(), signal.SIGABRT)\ndist.barrier()"
    with pytest.raises(RankLost, match="rank 2 is lost: it was killed by SIGABRT"):
        cells.run(code)


def test_a_run_that_is_being_stopped(cells: Cells, tmp_path: Path) -> None:
    # It takes the interrupt, and then its time.
    code = (
        "import pathlib\ntry:\n    print('here', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('stopping', flush=True)\n"
        "    while not os.path.exists(go): time.sleep(0.01)"
    )
    go = tmp_path / "go"
    cells.namespace["go"] = str(go)
    run = cells.start(code, names=["go"], ranks=[2])
    assert "being stopped" not in cells.cluster.where().text
    until(lambda: "time.sleep(600)" in cells.cluster.where().text)
    shown = cells.cluster.snapshot(run=run.id)["run"]
    assert "time.sleep(600)" in shown["where"] and not shown["warns"], "nothing is wrong"
    cells.cluster.interrupt_run(run.id)
    try:
        until(lambda: "the run is being stopped: " in cells.cluster.where().sentence)
    finally:
        go.touch()
        run.follow()
    shown = cells.cluster.snapshot(run=run.id)["run"]
    assert shown["where"].startswith("no rank waited for another: ")
    assert "rank 2 was at `while not " in shown["where"]


def test_a_rank_that_imports_from_a_path(cells: Cells) -> None:
    cells.run("import pathlib, sys\nsys.path.append(pathlib.Path('src'))")
    _hang(
        cells,
        "if rank != 2: dist.barrier()\nelse: time.sleep(600)",
        r"ranks 0-1, 3 wait in barrier #\d+ \(the cell, line 1\) for \d+ (?:s|min); "
        r"rank 2 is at `else: time.sleep\(600\)` \(the cell, line 2\)",
    )
    cells.run("sys.path.pop()")


def test_where_nothing_runs(cells: Cells) -> None:
    assert cells.cluster.where().text == "nothing is running."


def test_cells_are_called_as_in_the_notebook(cells: Cells) -> None:
    task = "if rank == 2:\n    time.sleep(600)\ndist.barrier()"
    run = cells.cluster.run(
        Task(cells.cluster.all_ranks, code=task, place=CellPlace("In[7]", above=1))
    )
    run.begin()
    _until_said(
        cells,
        run,
        r"ranks 0-1, 3 wait in barrier #\d+ \(cell \[7\], line 4\) for \d+ (?:s|min); "
        r"rank 2 is at `time.sleep\(600\)` \(cell \[7\], line 3\)",
    )


def test_where_torch_records_nothing(
    new: Callable[..., Cells], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with gloo in versions before 2.8: the stack has the operation, the group its number.
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    cells = new(nodes=2)
    cells.run("import time, torch, torch.distributed as dist\nrank = dist.get_rank()")
    _hang(
        cells,
        "dist.barrier()\nif rank == 1:\n    time.sleep(600)\ndist.all_reduce(torch.ones(3))",
        r"rank 0 waits in all_reduce #\d+ \(the cell, line 4\) for [1-9]\d* s; "
        r"rank 1 is at `time.sleep\(600\)` \(the cell, line 3\)",
    )


def test_a_rank_whose_process_is_stopped(cells: Cells) -> None:
    pids = cells.ask("os.getpid()")
    run = cells.start("time.sleep(0.2)\ndist.barrier()")
    os.kill(pids[2], signal.SIGSTOP)
    sentence = re.compile(
        r"ranks 0-1, 3 wait in barrier #\d+ \(the cell, line 2\) for \d+ (?:s|min); rank 2 does "
        r"not answer: the process is stopped, or the machine has no time for it"
    )
    try:
        until(lambda: sentence.fullmatch(cells.cluster.where().sentence))
    finally:
        os.kill(pids[2], signal.SIGCONT)
        run.follow()
    run.values()
