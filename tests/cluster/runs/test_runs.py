"""What a cell does on a cluster, and what comes back."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import UsageError
from jupyter_sky.transport.protocol.events import Display
from tests.cluster.conftest import Cells
from tests.notebook.kernels import without_colours
from tests.waiting import until


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((), r"no rank was chosen: test-\w+ has ranks 0-3\."),
        ((0, 4), r"there is no rank 4: test-\w+ has ranks 0-3\."),
    ],
)
def test_ranks_that_are_not_there_are_refused(
    cells: Cells, ranks: tuple[int, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        cells.cluster.run(Task(ranks, code="1"))
    assert cells.ask("1") == [1] * 4


def test_the_group_is_formed_before_the_first_cell(cells) -> None:
    assert cells.ask("dist.is_initialized()") == [True] * 4
    assert cells.ask("dist.get_rank()") == [0, 1, 2, 3]


def test_ranks_reduce_together(cells) -> None:
    cells.run("x = torch.tensor([float(rank)])\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [6.0] * 4


def test_only_shown_ranks_are_heard(cells) -> None:
    cells.run("print('rank', rank)")
    assert cells.text() == "rank 0\n"
    cells.run("print('rank', rank)", show=(1, 3))
    assert sorted(cells.text().splitlines()) == ["rank 1", "rank 3"]


@pytest.mark.parametrize("close", ["sys.{}.close()", "sys.{} = None", "_ = sys.{}.detach()"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_cell_prints_though_one_before_it_has_closed_its_streams(
    cells: Cells, stream: str, close: str
) -> None:
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    cells.run(
        f"import sys\nprint('last', file=sys.{stream})\n{close.format(stream)}\n"
        f"print('still open', file=sys.{other})"
    )
    assert (cells.text(stream), cells.text(other)) == ("last\n", "still open\n")
    cells.run("for each in (sys.stdout, sys.stderr, sys.stdout): print('heard', file=each)")
    assert (cells.text("stdout"), cells.text("stderr")) == ("heard\nheard\n", "heard\n")


@pytest.mark.parametrize(
    "code",
    [
        "os.close(1)",
        "os.close(2)",
        "sys.stdout.close(); os.close(1)",
        "os.close(1); os.close(2)",
        "os.set_blocking(1, False)",
    ],
)
def test_a_cell_prints_whatever_one_before_it_has_done_to_the_descriptors(
    cells: Cells, code: str
) -> None:
    cells.run(f"import os, sys\n{code}")
    cells.run("for each in (sys.stdout, sys.stderr): print('heard', file=each)")
    assert (cells.text("stdout"), cells.text("stderr")) == ("heard\n", "heard\n")
    # Otherwise who prints more than the pipe takes would lose it.
    assert cells.ask("os.get_blocking(1)") == [True] * 4


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("raise ValueError('in the child')", 1, "ValueError: in the child"),
        ("sys.exit('why')", 1, "why"),
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
    ],
)
def test_a_forked_child_ends_as_a_script_does(
    cells: Cells, end: str, status: int, said: str
) -> None:
    cells.run(
        "import os, sys, warnings\n"
        # Python 3.12 warns of forks beside threads.
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        f"if not (child := os.fork()): {end}\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert cells.text() == f"{status}\n"
    shown = without_colours(cells.text("stderr"))
    assert shown.rpartition("\n\n")[2].strip() == said


def test_a_forked_child_does_not_wait_for_a_group_that_its_parent_has_left(cells: Cells) -> None:
    cells.run(
        "import gc\ngc.disable()\n"
        # Such garbage is left where a group was formed again.
        "group = dist.new_group()\ndist.destroy_process_group(group)\n"
        "cycle = [group]\ncycle.append(cycle)\ndel cycle, group"
    )
    cells.run(
        "import os, signal, warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\n"
        "if not (child := os.fork()): signal.alarm(20); gc.collect(); os._exit(0)\n"
        "gc.enable()\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert cells.text() == "0\n"


def test_a_forked_child_prints_though_its_parent_was_being_flushed(cells: Cells) -> None:
    # The pipe has room for a part of an unfinished line: whoever flushes it then waits.
    cells.run(
        "import fcntl, signal, struct, termios, threading\n"
        "usual, (ours, theirs), read = os.dup(1), os.pipe(), b''\n"
        "size = fcntl.fcntl(theirs, fcntl.F_GETPIPE_SZ)\n"
        "def held(): return struct.unpack('i', fcntl.ioctl(ours, termios.FIONREAD, bytes(4)))[0]\n"
        "def read_all():\n"
        "    global read\n"
        "    forks.wait()\n"
        "    while data := os.read(ours, size): read += data\n"
        "forks = threading.Event()\n"
        "os.register_at_fork(before=forks.set)\n"
        "reader = threading.Thread(target=read_all); reader.start()\n"
        "os.write(theirs, b'.' * (size - 4096)); os.dup2(theirs, 1); os.close(theirs)\n"
        "print('x' * 8000, end='')\n"
        "while held() < size: time.sleep(0.01)\n"
        "if not (child := os.fork()): signal.alarm(20); print('child'); os._exit(0)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "os.dup2(usual, 1); os.close(usual); reader.join(); os.close(ours)\n"
        "print(status, read.strip(b'.') == b'x' * 8000 + b'child\\n')"
    )
    assert cells.text() == "0 True\n"


def test_a_signal_handler_that_raises_between_cells_is_no_end_of_the_rank(cells: Cells) -> None:
    cells.run(
        "import os, signal\ndef late(*_): raise TimeoutError('too late')\n"
        "usual = signal.signal(signal.SIGUSR1, late)\nkept = 5"
    )
    for pid in cells.ask("os.getpid()"):
        process = psutil.Process(pid)
        until(lambda process=process: process.status() == psutil.STATUS_SLEEPING)
        process.send_signal(signal.SIGUSR1)
    assert cells.ask("kept") == [5] * 4
    cells.run("signal.signal(signal.SIGUSR1, usual)")


@pytest.mark.parametrize(
    ("code", "calls"), [("x = 1", []), ("print('hello')", ["begun", b"hello\n"])]
)
def test_only_a_run_that_has_something_to_show_is_shown_to_begin(
    cells: Cells, code: str, calls: list[str | bytes]
) -> None:
    run, called = cells.start(code), []
    until(lambda: run.finished)
    run.follow(lambda event: called.append(event.data), begun=lambda: called.append("begun"))
    assert called == calls


def test_a_run_that_goes_on_is_shown_to_begin(cells: Cells, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    run = cells.start(f"import os, time\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.01)")
    run.follow(begun=seen.touch)
    assert seen.exists()


def test_what_is_not_shown_is_in_the_log(cells) -> None:
    cells.run("print('said by', rank)")
    assert cells.cluster.log(2, tail=1).data == b"said by 2\n"


def test_the_log_says_what_stands_where(cells) -> None:
    cells.run("print()")  # another test may have left a line without end
    cells.run("print('one')", title="the first")
    cells.run(
        "import sys\nprint('two', flush=True)\nprint('three', file=sys.stderr)", title="the second"
    )
    entries = [*cells.cluster.log(2, tail=3).entries()]
    assert [entry.time for entry in entries] == sorted(entry.time for entry in entries)
    assert [entry.title or (entry.stream, entry.data) for entry in entries] == [
        "the first",
        ("stdout", b"one\n"),
        "the second",
        ("stdout", b"two\n"),
        ("stderr", b"three\n"),
    ]
    last = [*cells.cluster.log(2, tail=1).entries()]
    assert [entry.title or entry.data for entry in last] == ["the second", b"three\n"]


def test_a_line_of_the_log_is_one_of_a_terminal(cells) -> None:
    cells.run("print('above')\nfor step in range(50): print(f'\\r{step}', end='')\nprint()")
    part = cells.cluster.log(0, tail=2)
    assert part.data.startswith(b"above\n\r0\r1")
    assert part.data.endswith(b"\r49\n")


def test_output_of_subprocesses_and_of_c_code_is_captured(cells) -> None:
    cells.run("import ctypes\nctypes.CDLL(None).puts(b'from C')\n!echo from a shell\n!echo no >&2")
    assert "from C\n" in cells.text()
    assert "from a shell\n" in cells.text()
    assert cells.text("stderr") == "no\n"


def test_what_a_rank_printed_comes_before_its_end(cells) -> None:
    cells.run("print('no end of line', end='')")
    assert cells.text() == "no end of line"


def test_a_line_arrives_while_the_cell_runs(cells, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    cells.namespace["go"] = str(flag)
    run = cells.start(
        "print('first')\nwhile not os.path.exists(go): time.sleep(0.01)\nprint('last')",
        names=["go"],
    )
    seen = []

    def show(event) -> None:
        seen.append(event.data)
        # The cell waits for this file: had the line been held back, the test would hang.
        flag.touch()

    run.follow(show)
    assert b"".join(seen) == b"first\nlast\n"


def test_the_last_expression_is_shown_and_a_semicolon_hides_it(cells) -> None:
    cells.run("6 * 7")
    [event] = cells.events
    assert isinstance(event, Display)
    assert event.data["text/plain"] == "42"
    cells.run("6 * 7;")
    assert cells.events == []


def test_rich_output_keeps_its_place_among_the_lines(cells) -> None:
    cells.run(
        "from IPython.display import HTML, display\nprint(1)\ndisplay(HTML('<b>2</b>'))\nprint(3)"
    )
    kinds = [e.data["text/html"] if isinstance(e, Display) else e.data for e in cells.events]
    assert kinds == [b"1\n", "<b>2</b>", b"3\n"]


def test_top_level_await(cells) -> None:
    cells.run("import asyncio\nawait asyncio.sleep(0)\nprint('awaited')")
    assert cells.text() == "awaited\n"


def test_names_travel_once_and_stay(cells) -> None:
    cells.namespace["x"] = 1
    cells.run("x += rank", names=["x"])
    cells.run("x += rank", names=["x"])
    assert cells.ask("x", names=["x"]) == [1, 3, 5, 7]
    cells.namespace["x"] = 10
    assert cells.ask("x", names=["x"]) == [10] * 4


def test_an_array_is_one_copy_that_every_rank_may_write_to(cells) -> None:
    cells.namespace["a"] = np.arange(1_000_000, dtype=np.float64)
    cells.run("a[0] = rank", names=["a"])
    assert cells.ask("float(a[0])", names=["a"]) == [0.0, 1.0, 2.0, 3.0]
    assert cells.ask("float(a[-1])", names=["a"]) == [999_999.0] * 4
    assert cells.namespace["a"][0] == 0


def test_unchanged_content_is_not_sent_again(cells) -> None:
    cells.namespace["big"] = np.random.default_rng(0).random(500_000)
    cells.run("pass", names=["big"])
    before = cells.cluster.sent_bytes
    cells.namespace["big"] = cells.namespace["big"].copy()
    cells.run("pass", names=["big"])
    assert cells.cluster.sent_bytes - before < 10_000
    cells.namespace["same_content"] = cells.namespace["big"].copy()
    cells.run("pass", names=["same_content"])
    assert cells.cluster.sent_bytes - before < 20_000


def test_a_model_and_its_optimizer_stay_together(cells) -> None:
    import torch

    model = torch.nn.Linear(64, 64)
    cells.namespace.update(model=model, opt=torch.optim.SGD(model.parameters(), lr=1.0))
    cells.run(
        "model.weight.grad = torch.ones_like(model.weight)\nopt.step()", names=["opt", "model"]
    )
    moved = cells.ask("model.weight.detach()", ranks=[1])[0]
    assert torch.allclose(moved, model.weight.detach() - 1)


def test_values_come_back_from_the_ranks_that_were_asked(cells) -> None:
    found = cells.run("y = rank * 10", values={0: ["y"], 3: ["y", "rank"]})
    assert found == {0: {"y": 0}, 3: {"y": 30, "rank": 3}}


def test_large_values_come_back(cells) -> None:
    found = cells.run("z = torch.full((1000, 1000), float(rank))", values={2: ["z"]})
    assert found[2]["z"].shape == (1000, 1000)
    found[2]["z"] += 1
    assert found[2]["z"].mean() == 3


def test_asking_for_a_name_that_is_not_there(cells) -> None:
    with pytest.raises(NameError, match="no such name"):
        cells.run("pass", values={1: ["nowhere"]})


def test_a_name_that_cannot_be_sent_is_named_and_nothing_is_sent(cells) -> None:
    import threading

    cells.namespace["config"] = {"log": [threading.Lock()]}
    with pytest.raises(sky.UsageError, match=r"config\['log'\]\[0\] cannot be sent"):
        cells.run("pass", names=["config"])
    assert cells.ask("1") == [1] * 4


def test_a_subset_of_ranks(cells) -> None:
    cells.run("mark = 'unset'")
    cells.run("mark = rank", ranks=[1, 3])
    assert cells.ask("mark") == ["unset", 1, "unset", 3]


def test_input_is_refused_with_a_reason(cells) -> None:
    with pytest.raises(RuntimeError, match="does not work on a rank"):
        cells.run("input('name? ')")


def test_instance_info_knows_its_peers(cells) -> None:
    infos = cells.ask("__import__('jupyter_sky').instance_info()")
    assert [info.rank for info in infos] == [0, 1, 2, 3]
    assert [peer.addr for peer in infos[2].peers] == ["127.0.0.1"] * 4
    assert [info.is_head for info in infos] == [True, False, False, False]


def test_each_rank_draws_numbers_of_its_own(new) -> None:
    drawn = "torch.initial_seed(), torch.rand(1).item(), random.random(), numpy.random.rand()"
    found = []
    for _ in range(2):  # the second cluster comes from what the first has left for it
        cells = new(nodes=2)
        cells.run("import random, numpy, torch")
        found += cells.ask(f"[{drawn}]")
        cells.cluster.down()
    for each in zip(*found, strict=True):
        assert len(set(each)) == 4
