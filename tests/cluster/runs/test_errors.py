"""Errors: what a rank raises, what becomes of the others, and that the next cell runs."""

from __future__ import annotations

import errno
import pickle
import re
import traceback
from dataclasses import replace

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.errors import Failure, RankLost, remote_error
from jupyter_sky.cluster.runs.run import rank_lost
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport.protocol.error_report import report
from jupyter_sky.transport.protocol.events import RankExited


def test_the_original_type_with_rank_and_traceback(cells) -> None:
    with pytest.raises(ValueError, match="only rank 2") as caught:
        cells.run(
            "def check(r):\n    if r == 2:\n        raise ValueError(f'only rank {r}')\ncheck(rank)"
        )
    error = caught.value
    assert isinstance(error, sky.RemoteError)
    assert (error.rank, error.host) == (2, "node 2")
    assert "raise ValueError(f'only rank {r}')" in _plain(error.remote_traceback)
    assert "check(rank)" in _plain(error.remote_traceback)
    # As Python shows it, and logging, and pytest.
    assert "----> 4 check(rank)" in "".join(traceback.format_exception(error))


def test_a_recursion_without_end_is_shown_as_python_shows_it(cells) -> None:
    # IPython looks through all modules for each of a thousand calls.
    with pytest.raises(RecursionError) as caught:
        cells.run("def again(n):\n    return again(n + 1)\nagain(0)")
    lines = _plain(caught.value.remote_traceback).splitlines()
    assert lines[:3] == ["Traceback (most recent call last):", lines[1], "    again(0)"]
    assert re.fullmatch(r"  \[Previous line repeated 9\d\d more times\]", lines[-2])
    with pytest.raises(RecursionError) as caught:
        cells.run("def even(n):\n    return odd(n)\ndef odd(n):\n    return even(n)\neven(0)")
    lines = _plain(caught.value.remote_traceback).splitlines()
    assert (lines[2], len(lines)) == ("    even(0)", 103)
    assert re.fullmatch(r"  \[\d{4} lines are left out\]", lines[51])
    cells.run("def chained():\n    try:\n        again(0)\n    finally:\n        1 / 0")
    with pytest.raises(ZeroDivisionError) as caught:
        cells.run("chained()")
    assert "Previous line repeated" in _plain(caught.value.remote_traceback)


def test_an_error_that_is_its_own_cause_ends_the_cell_like_others(cells) -> None:
    with pytest.raises(ZeroDivisionError):
        cells.run("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise error from error")
    cells.run("pass")


def test_peers_of_a_failed_rank_are_released(cells) -> None:
    with pytest.raises(KeyError) as caught:
        cells.run("kept = rank\nif rank == 1:\n    raise KeyError('lost')\ndist.barrier()")
    assert [failure.rank for failure in caught.value.failures] == [1]
    assert cells.ask("kept") == [0, 1, 2, 3]
    cells.run("x = torch.ones(1)\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [4.0] * 4


def test_the_same_error_on_several_ranks_is_said_once(cells) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        cells.run("if rank: 1 / 0")
    # Those that have not told a second after the first one are stopped.
    failures = caught.value.failures
    ranks = sorted(failure.rank for failure in failures)
    assert set(ranks) <= {1, 2, 3}
    nodes = ", ".join(f"node {rank}" for rank in ranks)
    assert caught.value.__notes__ == [f"on {format_ranks(ranks)} ({nodes})"]
    three = [replace(failures[0], rank=rank, host=f"node {rank}") for rank in (1, 2, 3)]
    assert remote_error(three).__notes__ == ["on ranks 1-3 (node 1, node 2, node 3)"]


_TASKS = """
import asyncio
async def load():
    raise [ConnectionError("proxy"), KeyError("label"), FileNotFoundError("shard-2")][rank]
async with asyncio.TaskGroup() as tasks:
    tasks.create_task(load())
"""
_CAUSES = """
def load():
    raise [ConnectionError("proxy"), KeyError("label"), FileNotFoundError("shard-2")][rank]
try:
    load()
except Exception as error:
    raise RuntimeError("could not load the data") from error
"""
_LINES = """
pass
assert rank != 0
assert rank != 1
assert rank != 2
"""
_NOTES = """
error = ValueError("bad")
error.add_note(["in train.csv", "in test.csv", "in both"][rank])
raise error
"""
_TEXTS = """
try:
    {}["x"]
except KeyError:
    raise ValueError(f"bad {rank}")
"""


@pytest.mark.parametrize(
    ("code", "second", "third"),
    [
        (_TASKS, "KeyError: 'label' (the cell, line 3)", "FileNotFoundError: shard-2 (the cell, "),
        (_CAUSES, "KeyError: 'label' (the cell, line 2)", "FileNotFoundError: shard-2 (the cell, "),
        (_LINES, "AssertionError (the cell, line 3)", "AssertionError (the cell, line 4)"),
        (_NOTES, "ValueError: bad (in test.csv; the cell, line 3)", "ValueError: bad (in both; "),
        (_TEXTS, "ValueError: bad 1 (the cell, line 4)", "ValueError: bad 2 (the cell, line 4)"),
    ],
)
def test_errors_that_differ_in_their_causes_or_lines_are_told_apart(
    cells, code: str, second: str, third: str
) -> None:
    first, *others = remote_error(_failures(cells, code)).__notes__[-3:]
    assert first == "on rank 0 (node 0)"
    for line, start, where in zip(
        others, (second, third), ("on rank 1 (node 1)", "on rank 2 (node 2)"), strict=True
    ):
        assert line.startswith(start) and line.endswith(where)


def test_errors_of_many_ranks_are_a_few_lines_in_the_order_of_ranks(cells) -> None:
    text = "CUDA out of memory on GPU {}:\x1b]0;title\x07 tried to allocate " + "2 GiB " * 60
    (failure,) = _failures(cells, "raise MemoryError('out')", ranks=1)

    def on(rank: int) -> Failure:
        error = {**failure.error, "text": text.format(rank)}
        return replace(failure, rank=rank, host=f"node {rank}", error=error)

    first, *others, last = remote_error([on(rank) for rank in range(63, -1, -1)]).__notes__
    assert first == "on rank 63 (node 63)"
    said = [f"MemoryError: CUDA out of memory on GPU {rank}: tried" for rank in range(8)]
    assert [line.partition(" to allocate")[0] for line in others] == said
    assert max(map(len, others)) < 270, "a line or two of the cell"
    assert last == "other errors on ranks 8-62 (node 8, node 9, node 10 and 52 more)"


def test_the_order_in_which_tasks_have_failed_does_not_tell_errors_apart(cells) -> None:
    code = (
        "async def load():\n"
        "    raise ConnectionError('proxy')\n"
        "async def label():\n"
        "    raise KeyError('label')\n"
        "errors = []\n"
        "for task in [load, label][:: 1 if rank else -1]:\n"
        "    try:\n"
        "        await task()\n"
        "    except Exception as error:\n"
        "        errors.append(error)\n"
        "raise ExceptionGroup('tasks', errors)"
    )
    failures = _failures(cells, code)
    assert failures[0].chain != failures[1].chain
    assert remote_error(failures).__notes__ == ["on ranks 0-2 (node 0, node 1, node 2)"]


def test_numbers_in_a_cause_do_not_tell_errors_apart(cells) -> None:
    code = (
        "class Peer: pass\n"
        "try:\n"
        "    raise KeyError(f'{Peer()} of rank{rank}')\n"
        "except KeyError as error:\n"
        "    raise RuntimeError('could not load the data') from error"
    )
    failures = _failures(cells, code)
    assert len({failure.chain[1]["text"] for failure in failures}) == 3
    assert remote_error(failures).__notes__ == ["on ranks 0-2 (node 0, node 1, node 2)"]


def test_where_a_recursion_without_end_has_failed_does_not_tell_errors_apart(cells) -> None:
    code = (
        "def even(n):\n    return odd(n)\ndef odd(n):\n    return even(n)\n(even, odd)[rank % 2](0)"
    )
    notes = remote_error(_failures(cells, code)).__notes__
    assert notes == ["on ranks 0-2 (node 0, node 1, node 2)"]


def _failures(cells, code: str, ranks: int = 3) -> list[Failure]:
    """The failures of ranks, each of which runs a cell alone: none is stopped by another."""
    found = []
    for rank in range(ranks):
        with pytest.raises(sky.RemoteError) as caught:
            cells.run(code.lstrip(), ranks=[rank])
        found += caught.value.failures
    return found


def test_a_type_of_the_notebook_is_caught_by_its_name(cells) -> None:
    class Broken(Exception):
        pass

    import __main__

    __main__.Broken = Broken
    Broken.__module__, Broken.__qualname__ = "__main__", "Broken"
    cells.namespace["Broken"] = Broken
    try:
        with pytest.raises(Broken, match="as defined here"):
            cells.run("raise Broken('as defined here')", names=["Broken"])
    finally:
        del __main__.Broken


def test_too_little_memory_is_caught_as_such(cells) -> None:
    with pytest.raises(MemoryError, match="Unable to allocate") as caught:
        cells.run("import numpy as np\nnp.zeros(2**50)")
    assert isinstance(caught.value, sky.RemoteError)


@pytest.mark.parametrize(
    ("code", "field", "value"),
    [
        ("os.mkdir('/')", "errno", errno.EEXIST),
        ("os.mkdir('/')", "filename", "/"),
        ("import nosuch.part", "name", "nosuch"),
        ("raise StopIteration(5)", "value", 5),
        ("b'a\\xff'.decode()", "start", 1),
    ],
)
def test_what_python_keeps_of_an_error_comes_with_it(
    cells, code: str, field: str, value: object
) -> None:
    with pytest.raises(sky.RemoteError) as caught:
        cells.run(code, ranks=[0])
    assert getattr(caught.value, field) == value


def test_a_type_that_is_unknown_here_keeps_its_name_and_text(cells) -> None:
    with pytest.raises(RuntimeError, match="odd") as caught:
        cells.run("class Odd(RuntimeError): pass\nraise Odd('odd')")
    assert (type(caught.value).__name__, type(caught.value).__module__) == ("Odd", "__main__")


def test_system_exit_is_an_error_of_the_cell(cells) -> None:
    with pytest.raises(sky.RemoteError, match="3"):
        cells.run("import sys\nsys.exit(3)")
    assert cells.ask("rank") == [0, 1, 2, 3]


def test_a_remote_error_can_be_pickled(cells) -> None:
    with pytest.raises(ValueError) as caught:
        cells.run("raise ValueError('again')")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, ValueError)
    assert str(again) == "again"


def test_a_killed_rank_is_named_and_comes_back_empty(cells) -> None:
    cells.run("import signal\nkept = rank")
    # Not SIGKILL: beside a test that lacks memory, that is taken for the system's.
    with pytest.raises(RankLost, match="rank 2 is lost: it was killed by SIGTERM") as caught:
        cells.run("if rank == 2:\n    os.kill(os.getpid(), signal.SIGTERM)\ndist.barrier()")
    assert caught.value.rank == 2
    found = cells.run("pass", values={rank: ["kept"] for rank in (0, 1, 3)})
    assert {rank: names["kept"] for rank, names in found.items()} == {0: 0, 1: 1, 3: 3}
    with pytest.raises(NameError):
        cells.run("kept", ranks=[2])
    cells.run("import torch, torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [4.0] * 4


def test_why_ranks_are_lost_is_said_once_where_it_is_the_same() -> None:
    reasons = ["it was killed by SIGKILL"] * 12 + ["its process ended with status 3"]
    lost = [
        RankExited(rank, 1, reason, "run", f"line {rank}", True)
        for rank, reason in enumerate(reasons)
    ]
    failures = [Failure(each.rank, f"node {each.rank}", rank_lost(each, True)) for each in lost]
    first, same, other = remote_error(failures).__notes__
    assert first == "on rank 0 (node 0)"
    assert same == "the same on ranks 1-11 (node 1, node 2, node 3 and 8 more)"
    assert other.startswith("RankLost: rank 12 is lost: its process ended with status 3. ")
    assert other.endswith("ranks that were not lost keep theirs. on rank 12 (node 12)")


def test_no_traceback_commands_the_terminal() -> None:
    said = report(ValueError, "no")
    said["traceback"] = ["\x1b[31mValueError\x1b]52;c;ZXZpbA==\x07", "no\x1b[6n"]
    error = remote_error([Failure(0, "node 0", said)])
    assert error.remote_traceback == "\x1b[31mValueError\nno"
    shown = "\n".join(error._render_traceback_())
    assert shown.startswith("\x1b[31mValueError\nno")
    assert "]52;c" not in shown


@pytest.mark.parametrize(
    ("count", "nodes"),
    [
        (4, "node 0, node 1, node 2, node 3"),
        (12, "node 0, node 1, node 2 and 9 more"),
    ],
)
def test_nodes_of_an_error_stand_in_the_order_of_ranks(count: int, nodes: str) -> None:
    error = report(ValueError, "bad")
    failures = [Failure(rank, f"node {rank}", error) for rank in reversed(range(count))]
    assert remote_error(failures).__notes__ == [f"on ranks 0-{count - 1} ({nodes})"]


def test_names_are_sent_again_to_a_rank_that_came_back(cells) -> None:
    cells.namespace["x"] = "sent"
    cells.run("pass", names=["x"])
    with pytest.raises(RankLost):
        cells.run("if rank == 1: os.kill(os.getpid(), 11)")
    assert cells.ask("x", names=["x"]) == ["sent"] * 4


def test_ranks_in_words() -> None:
    assert format_ranks([3]) == "rank 3"
    assert format_ranks([5, 1, 0, 2]) == "ranks 0-2, 5"


def _plain(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_error_of_a_collective_has_the_lines_that_led_to_it(cells) -> None:
    code = "def step():\n    raise RuntimeError('Connection closed by peer [127.0.0.1]:1')\nstep()"
    with pytest.raises(RuntimeError, match="closed by peer") as caught:
        cells.run(code, ranks=[1], title="train")
    shown = caught.value.remote_traceback
    assert "line 3, in <module>" in shown
    assert "line 2, in step" in shown
    assert "raise RuntimeError('Connection closed by peer" in shown
    assert "jupyter_sky" not in shown
    assert "IPython" not in shown
