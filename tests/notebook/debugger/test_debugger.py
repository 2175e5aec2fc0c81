"""The debugger in the cell: what it shows, where it stops, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.notebook.kernels import Cell, LiveNotebook
from tests.waiting import until

# Since Python 3.13, a debugger stops at the call that starts it, and before at the next line.
_TO_NEXT_LINE = ["n"] if sys.version_info >= (3, 13) else []

_WAITS = (
    r"rank 0 waits in barrier.*; rank 1 is at the debugger's prompt \(cell \[\d+\], line "
    rf"{3 if _TO_NEXT_LINE else 4}\)"
)

_FAILS = (
    "%%sky --ranks 1\n"
    "import gc, weakref\n"
    "class Large: pass\n"
    "seen = None\n"
    "def outer(count):\n"
    "    global seen\n"
    "    held = Large()\n"
    "    seen = weakref.ref(held)\n"
    "    inner(count + 1)\n"
    "def inner(value):\n"
    "    raise ValueError(f'bad {value}')\n"
    "outer(1)"
)


# As the iterator of a DataLoader, which needs its queues to end its workers.
_FAILS_IN_A_LOOP = (
    "%%sky --ranks 1\n"
    "import weakref\n"
    "class Queue: pass\n"
    "class Loop:\n"
    "    def __init__(self):\n"
    "        self.queue = Queue()\n"
    "        self.end = weakref.finalize(self.queue, ended.append, 'queue')\n"
    "    def __iter__(self): return self\n"
    "    def __next__(self):\n"
    "        error = ValueError('bad item')\n"
    "        raise error\n"
    "    def __del__(self): ended.append('loop')\n"
    "ended, kept = [], None\n"
)


def talk(notebook: LiveNotebook, code: str, *answers: str) -> Cell:
    """Run a cell that asks, answer, and return it with the questions in ``order``."""
    cell = notebook.start(code)
    questions = [notebook.answer(each) for each in answers]
    notebook.finish(cell)
    cell.order = questions
    return cell


def wait_for_all(notebook: LiveNotebook) -> None:
    """Let nothing be asked before all ranks are at their prompts, however long they take."""
    notebook.succeed(
        "from jupyter_sky.api.prompts import prompter\n"
        "prompter._PATIENCE = prompter._TOGETHER = 100"
    )


@pytest.fixture
def all_at_once(pair: LiveNotebook) -> Iterator[None]:
    """Have the user asked when all ranks are at their prompts, in cells in which all come there."""
    wait_for_all(pair)
    yield
    pair.succeed("prompter._PATIENCE, prompter._TOGETHER = 2, 0.2")


def test_debug_looks_at_the_rank_that_failed(pair: LiveNotebook) -> None:
    assert pair.run(_FAILS).traceback.endswith("ValueError: bad 2\non rank 1 (node 1)")
    cell = talk(pair, "%debug", "p value", "up", "p count, held", "l", "w", "args", "c")
    assert cell.error is None, cell.traceback
    text = cell.stdout
    assert "ValueError: bad 2\n> cell [" in text
    assert "](11)inner()\n-> raise ValueError(f'bad {value}')\n2\n" in text
    assert "](9)outer()\n-> inner(count + 1)\n(1, <" in text
    assert "  9  ->\t    inner(count + 1)" in text
    assert "jupyter_sky" not in text
    assert "IPython" not in text
    assert "count = 1" in text
    # Left with `c`, it is still there; with `q` it is released, with all that it held.
    again = talk(pair, "%sky debug --rank 1", "p value", "q")
    assert "\n2\n" in again.stdout
    assert "has kept no error of that cell" in pair.run("%debug", keyboard=True).sentence
    gone = pair.succeed("%%sky --ranks 1\nprint(seen() is None)")
    assert gone.stdout == "True\n"


def test_debug_looks_at_the_lowest_of_the_ranks_with_the_same_error(pair: LiveNotebook) -> None:
    # Rank 1 is the first, and the head is not stopped yet.
    cell = pair.run("%%sky\nimport time\ntime.sleep(0.2 * (1 - rank))\n1 / 0")
    assert "on ranks 0-1" in cell.traceback
    assert "The debugger of rank 0" in talk(pair, "%debug", "p rank", "q").stdout


def test_the_next_cell_releases_what_a_failed_one_held(pair: LiveNotebook) -> None:
    pair.run(_FAILS)
    assert pair.succeed("%%sky --ranks 1\nprint(seen() is None)").stdout == "True\n"
    assert "has kept no error" in pair.run("%sky debug --rank 1", keyboard=True).sentence


def test_an_error_of_a_cell_itself_is_released_without_the_collector(pair: LiveNotebook) -> None:
    """With all that libraries bring, that takes a quarter of a second."""
    pair.succeed(
        "%%sky --ranks 1\nimport gc, weakref\nclass Held: pass\ngc.disable()\n"
        "def make():\n    global seen\n    error = ValueError('bad')\n"
        "    error.held = Held()\n    seen = weakref.ref(error.held)\n    return error\n"
        "collected = []\nnote = lambda phase, info: collected.append(phase)\n"
        "gc.callbacks.append(note)"
    )
    for fails in ("raise make()", "try: 1/0\nexcept ArithmeticError: raise make()"):
        assert "ValueError: bad" in pair.run(f"%%sky --ranks 1\n{fails}").traceback
        assert pair.succeed("%%sky --ranks 1\nprint(seen(), collected)").stdout == "None []\n"
    pair.succeed("%%sky --ranks 1\ngc.callbacks.remove(note)\ngc.enable()")


def test_what_a_failed_cell_held_ends_before_what_it_needs(pair: LiveNotebook) -> None:
    assert "bad item" in pair.run(_FAILS_IN_A_LOOP + "for item in Loop(): pass").traceback
    assert pair.succeed("%%sky --ranks 1\nprint(ended)").stdout == "['loop', 'queue']\n"


def test_an_error_that_the_user_keeps_has_its_variables(pair: LiveNotebook) -> None:
    keeps = (
        "try:\n    for item in Loop(): pass\n"
        "except ValueError as error:\n    kept = error\n    raise"
    )
    assert "bad item" in pair.run(_FAILS_IN_A_LOOP + keeps).traceback
    looks = "import traceback\n*_, (frame, _) = traceback.walk_tb(kept.__traceback__)"
    shown = pair.succeed(f"%%sky --ranks 1\n{looks}\nprint(ended, *frame.f_locals)").stdout
    assert shown == "[] self error\n"


def test_variables_that_are_brought_leave_the_error_there(pair: LiveNotebook) -> None:
    pair.run(_FAILS)
    pair.succeed("%sky pull rank")
    cell = talk(pair, "%debug", "p value", "q")
    assert "\n2\n" in cell.stdout


def test_a_debugger_that_was_stopped_is_entered_again(pair: LiveNotebook) -> None:
    pair.run(_FAILS)
    cell = pair.start("%debug")
    pair.question()
    pair.interrupt()
    pair.finish(cell)
    assert cell.sentence.startswith("KeyboardInterrupt: rank 1 stopped")
    cell = talk(pair, "%debug", "p value", "q")
    assert "\n2\n" in cell.stdout


def test_an_error_without_frames_of_the_users_has_nothing_to_look_at(pair: LiveNotebook) -> None:
    for code in ("%%sky\n1 = 2", "%sky pull nowhere", "%sky logs 9"):
        assert pair.run(code).error
        cell = pair.run("%debug", keyboard=True)
        assert "no frames of your code to look at: `%sky debug` looks" in cell.sentence
        assert pair.run("%debug", keyboard=True).sentence == cell.sentence


def test_an_error_of_the_notebook_is_ipythons(pair: LiveNotebook) -> None:
    pair.run("%%sky --ranks 1\n1 / 0")
    pair.run("here = [7]\nhere[3]")
    cell = talk(pair, "%debug", "p here", "q")
    assert cell.order[0].startswith("ipdb>")
    assert "[7]" in cell.stdout


@pytest.mark.usefixtures("all_at_once")
def test_a_breakpoint_stops_all_and_commands_go_to_those_chosen(pair: LiveNotebook) -> None:
    cell = talk(
        pair,
        "%%sky --stdout all\n"
        "total = rank\n"
        "breakpoint()\n"
        "total += 10\n"
        "dist.barrier()\n"
        "print('total', total)",
        "ranks all",
        *_TO_NEXT_LINE,
        "n",
        "rank 1",
        "total = 41",
        "p total",
        "ranks all",
        "c",
    )
    assert cell.error is None, cell.traceback
    assert cell.order == [
        "(rank 0) ",
        *["(ranks 0-1) " for _ in _TO_NEXT_LINE],
        "(ranks 0-1) ",
        "(ranks 0-1) ",
        "(rank 1) ",
        "(rank 1) ",
        "(rank 1) ",
        "(ranks 0-1) ",
    ]
    assert "](4)<module>()\n-> total += 10" in cell.stdout
    assert sorted(cell.stdout.splitlines()[-2:]) == ["0 │ total 10", "1 │ total 41"]


def test_a_rank_that_stops_is_waited_for_and_shown(pair: LiveNotebook) -> None:
    cell = pair.start(
        "%%sky\n"
        "if rank == 1:\n"
        "    breakpoint()\n"
        "    reached = True\n"
        "dist.barrier()\n"
        "group = dist.distributed_c10d._get_default_group()\n"
        "print(group._get_backend(torch.device('cpu')).options._timeout)"
    )
    pair.until(cell, lambda cell: cell.strips)
    request = {"action": "where", "cluster": cell.snapshot["cluster"]["id"]}
    assert until(lambda: re.search(_WAITS, pair.say_action(request)))
    assert pair.answer("c") == "(rank 1) "
    pair.finish(cell)
    assert cell.error is None, cell.traceback
    # The time limits are as before.
    after = pair.succeed("%%sky\nprint(group._get_backend(torch.device('cpu')).options._timeout)")
    assert cell.stdout.endswith("1 day, 0:00:00\n")
    assert after.stdout == "0:30:00\n"


@pytest.mark.parametrize("module", ["pdb", "IPython.core.debugger"])
def test_set_trace_of_debuggers_at_a_terminal_stops_as_breakpoint_does(
    pair: LiveNotebook, module: str
) -> None:
    cell = talk(
        pair,
        "%%sky\n"
        f"from {module} import set_trace\n"
        "share = 10 * rank\n"
        "if rank == 1:\n"
        "    set_trace()\n"
        "    share += 1",
        *_TO_NEXT_LINE,
        "p share",
        "c",
    )
    assert cell.error is None, cell.traceback
    assert cell.order == ["(rank 1) ", "(rank 1) ", *["(rank 1) " for _ in _TO_NEXT_LINE]]
    assert "](6)<module>()\n-> share += 1\n10\n" in cell.stdout


@pytest.mark.parametrize("call", ["post_mortem()", "post_mortem(error.__traceback__)"])
def test_post_mortem_of_pdb_looks_at_the_error_that_is_handled(
    pair: LiveNotebook, all_at_once: None, call: str
) -> None:
    cell = talk(
        pair,
        "%%sky\n"
        "import pdb\n"
        "def inner(value):\n"
        "    raise ValueError(value)\n"
        "try:\n"
        "    inner(10 + rank)\n"
        "except ValueError as error:\n"
        f"    pdb.{call}\n"
        "print('went on')",
        "ranks all",
        "p value",
        "q",
    )
    assert cell.error is None, cell.traceback
    assert "](4)inner()\n-> raise ValueError(value)\n" in cell.stdout
    assert "10\n" in cell.stdout and "11\n" in cell.stdout
    assert "went on\n" in cell.stdout


@pytest.mark.parametrize(
    "words",
    [("b 8", "c", "q"), ("b 8", "c", "c"), ("until 7", "n", "q"), ("until 7", "n", "c")],
    ids=" ".join,
)
def test_post_mortem_of_pdb_leaves_the_debugger_of_the_cell_as_it_is(
    pair: LiveNotebook, words: tuple[str, ...]
) -> None:
    cell = talk(
        pair,
        "%%sky --ranks 0\n"
        "import pdb\n"
        "breakpoint()\n"
        "try:\n"
        "    1 / 0\n"
        "except ZeroDivisionError:\n"
        "    pdb.post_mortem()\n"
        "total = 1\n"
        "print('went on')",
        *_TO_NEXT_LINE,
        *words,
        "c",
    )
    assert cell.error is None, cell.traceback
    assert "](8)<module>()\n-> total = 1\n" in cell.stdout
    assert cell.stdout.endswith("went on\n")


def test_pm_of_pdb_says_where_errors_of_earlier_cells_are(pair: LiveNotebook) -> None:
    pair.run("%%sky --ranks 1\n1 / 0")
    cell = pair.run("%%sky --ranks 1\nimport pdb\npdb.pm()", keyboard=True)
    assert "and then %debug in a cell of its own, without %%sky" in cell.traceback


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("%debug", "type %debug in a cell of its own"),
        ("%debug f(0)", "write `breakpoint()` above the line"),
        ("%%debug\nf(0)", "write `breakpoint()` above the line"),
    ],
)
def test_debug_above_or_in_a_cell_says_what_to_do_instead(
    pair: LiveNotebook, cell: str, sentence: str
) -> None:
    assert sentence in pair.run(f"%%sky --ranks 1\n{cell}", keyboard=True).sentence


@pytest.mark.parametrize(
    "asks",
    ["import code\ncode.interact()", "import pdb\npdb.Pdb().set_trace()\nmark = 1",
     "from IPython import embed\nembed()"],
)  # fmt: skip
def test_consoles_of_a_terminal_say_what_stops_other_ranks(pair: LiveNotebook, asks: str) -> None:
    cell = pair.run(f"%%sky --ranks 1\n{asks}", keyboard=True)
    assert "and this is rank 1: call breakpoint() instead, or stop where a cell" in cell.traceback


def test_pdb_stops_where_a_module_raises(pair: LiveNotebook) -> None:
    Path(pair.path.parent / "shaky.py").write_text(
        "def halve(number):\n    if number % 2:\n        raise ValueError(number)\n"
    )
    cell = talk(
        pair, "%%sky --pdb\nimport shaky\nshaky.halve(2 + rank)\ndist.barrier()", "p number", "q"
    )
    assert cell.order == ["(rank 1) "] * 2
    assert "shaky.py(3)halve()\n-> raise ValueError(number)\n3\n" in cell.stdout
    assert "ValueError: 3" in cell.traceback
    assert pair.succeed("%%sky\ndist.barrier()").error is None


def test_it_steps_into_functions_and_stops_at_lines(pair: LiveNotebook) -> None:
    cell = talk(
        pair,
        "%%sky --ranks 0\n"
        "def double(number):\n"
        "    twice = number * 2\n"
        "    return twice\n"
        "breakpoint()\n"
        "a = double(4)\n"
        "b = a + 1\n"
        "c = b + 1",
        *_TO_NEXT_LINE,
        "s",
        "n",
        "r",
        "b 8",
        "c",
        "p a, b",
        "n",
        "n",
    )
    assert cell.error is None, cell.traceback
    text = cell.stdout
    assert "--Call--\n> cell [" in text
    assert "--Return--\n> cell [" in text
    assert re.search(r"^Breakpoint \d+ at cell \[\d+\]:8$", text, re.MULTILINE)
    assert "\n(8, 9)\n" in text
    # Nothing of ours is stepped through behind its last line.
    assert cell.order == ["(Pdb) "] * (8 + len(_TO_NEXT_LINE))
    assert pair.succeed("%%sky --ranks 0\nimport sys\nprint(sys.gettrace(), c)").stdout == (
        "None 10\n"
    )


def test_it_stops_in_no_line_of_the_debugger_itself(pair: LiveNotebook) -> None:
    code = "%%sky --ranks 0\nfor step in range(3):\n    breakpoint()"
    cell = talk(pair, code, "b 3", *"ccccc")
    assert cell.error is None, cell.traceback
    places = re.findall(r"^> (.*)<module>", cell.stdout, re.MULTILINE)
    next_line = "(3)" if _TO_NEXT_LINE else "(2)"
    assert [place[-3:] for place in places] == [next_line, "(3)", next_line, "(3)", next_line]
    assert "bdb" not in cell.stdout


def test_it_stops_in_no_process_that_the_cell_forks(pair: LiveNotebook) -> None:
    cell = talk(
        pair,
        "%%sky --ranks 0\n"
        "from torch.utils.data import DataLoader\n"
        "class Squares:\n"
        "    def __len__(self):\n"
        "        return 2\n"
        "    def __getitem__(self, number):\n"
        "        return number**2 + 7\n"
        "breakpoint()\n"
        "print([int(each) for each in DataLoader(Squares(), num_workers=1)])\n"
        "print(Squares()[3])",
        *_TO_NEXT_LINE,
        "b Squares.__getitem__",
        "c",
        "p number",
        "c",
    )
    assert cell.error is None, cell.traceback
    assert "[7, 8]\n> cell [" in cell.stdout
    assert cell.stdout.endswith("\n3\n16\n")


def test_it_stops_at_no_error_of_a_process_that_the_cell_forks(pair: LiveNotebook) -> None:
    cell = pair.run(
        "%%sky --pdb --ranks 0\n"
        "import os, warnings\n"
        # Python 3.12 warns of forks beside threads.
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "if not (child := os.fork()): raise ValueError('in the child')\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
        keyboard=True,
    )
    assert cell.error is None, cell.traceback
    assert cell.stdout == "1\n"
    assert cell.stderr.endswith(": in the child\n")


def test_what_cannot_be_sent_or_chosen_is_asked_again(pair: LiveNotebook) -> None:
    cell = talk(
        pair,
        "%%sky --ranks 0\nlength = 0\nbreakpoint()\nprint(length)",
        f"length = len('{'x' * 20_000}')",
        "length = len('xxx')",
        "ranks 3-1",
        "c",
    )
    assert cell.error is None, cell.traceback
    assert "the answer is too long: give at most 16,384 characters\n" in cell.stdout
    assert "ranks 1-3: not at a prompt. rank 0 is at the prompt" in cell.stdout
    assert cell.stdout.endswith("\n3\n")


def test_q_ends_the_cell_for_those_in_a_collective_too(pair: LiveNotebook) -> None:
    code = "%%sky\nif rank == 0:\n    breakpoint()\n    kept = 1\ndist.barrier()"
    cell = talk(pair, code, "q")
    assert cell.sentence == (
        "DebuggerQuit: the cell ended here, as its debugger was left with `q` (on rank 0 (node 0))"
    )
    assert pair.succeed("%%sky\ndist.barrier()\nprint(rank)").stdout == "0\n"


def test_stop_at_the_prompt_ends_the_run_everywhere(pair: LiveNotebook) -> None:
    cell = pair.start("%%sky\nmark = 5\nbreakpoint()\nmark = 6\ndist.barrier()")
    pair.question()
    pair.interrupt()
    pair.finish(cell)
    assert "stopped after" in cell.traceback
    assert pair.succeed("%%sky\ndist.barrier()\nprint(mark)").stdout == "5\n"


def test_stop_ends_a_command_of_the_debugger_too(pair: LiveNotebook) -> None:
    cell = pair.start("%%sky --ranks 0\nmark = 7\nbreakpoint()\nmark = 8")
    pair.answer("print('slow', flush=True, file=__import__('sys').__stdout__); time.sleep(600)")
    pair.until(cell, lambda cell: "slow" in cell.stdout)
    pair.interrupt()
    pair.finish(cell)
    assert "rank 0 stopped after" in cell.sentence
    assert pair.succeed("%%sky --ranks 0\nprint(mark)").stdout == "7\n"


@pytest.mark.parametrize(
    "asks",
    [
        "import code\ncode.interact()",
        "while True:\n    try:\n        input('x? ')\n    except KeyboardInterrupt:\n        pass",
    ],
)
def test_what_asks_on_after_stop_is_at_the_end_of_the_input(pair: LiveNotebook, asks: str) -> None:
    pair.succeed("%%sky --ranks 0\nmark = 9")
    cell = pair.start(f"%%sky --ranks 0\n{asks}")
    pair.question()
    pair.interrupt()
    pair.finish(cell)
    assert "rank 0 stopped after" in cell.sentence
    assert cell.stderr.count("KeyboardInterrupt") <= 2
    assert pair.succeed("%%sky --ranks 0\nprint(mark)").stdout == "9\n"


def test_a_rank_that_dies_at_the_prompt_takes_it_back(pair: LiveNotebook) -> None:
    pid = int(pair.succeed("%%sky --ranks 1\nimport os\nprint(os.getpid())").stdout)
    cell = pair.start("%%sky\nif rank == 1:\n    breakpoint()\n    mark = 6\ndist.barrier()")
    pair.question()
    os.kill(pid, signal.SIGKILL)
    pair.finish(cell)
    assert "RankLost: rank 1 is lost" in cell.traceback
    sentence = pair.run("%debug", keyboard=True).sentence
    assert "the process of rank 1 has ended, and its frames with it" in sentence
    assert pair.succeed("%%sky\nimport torch.distributed as dist\ndist.barrier()").error is None


def test_a_prompt_that_nobody_answers_keeps_no_cluster_from_its_idle_timeout(
    opened: Callable[..., LiveNotebook],
) -> None:
    cell = opened().run(
        "%%sky --nodes 2 --plugin none --idle-timeout 4s\n"
        "import jupyter_sky as sky\n"
        "if sky.instance_info().rank == 1:\n"
        "    breakpoint()\n"
        "    print('past it')",
        keyboard=True,
    )
    assert cell.error is None, cell.traceback
    assert "rank 1 goes on: nobody has answered its prompt for 4 s" in "".join(cell.shown)


def test_the_head_asks_for_lines_and_passwords(pair: LiveNotebook) -> None:
    cell = talk(
        pair,
        "%%sky --ranks 0\n"
        "import getpass\n"
        "name = input('name? ')\n"
        "word = getpass.getpass('word? ')\n"
        "print(name, len(word))",
        "Ada",
        "s3cret",
    )
    assert cell.order == ["name? ", "word? "]
    assert cell.stdout == "Ada 6\n"
    assert "s3cret" not in str(cell.strips)
    assert "s3cret" not in pair.succeed("%sky logs").stdout


def test_other_ranks_and_workers_say_where_to_ask(pair: LiveNotebook) -> None:
    cell = pair.run("%%sky --ranks 1\ninput('name? ')", keyboard=True)
    assert "from the head alone, and this is rank 1: call it on rank 0 only" in cell.traceback
    forked = pair.run(
        "%%sky --ranks 0\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "ThreadPoolExecutor().submit(breakpoint).result()",
        keyboard=True,
    )
    assert "breakpoint() works in the main thread of a rank alone" in forked.traceback


def test_without_a_keyboard_it_says_so(pair: LiveNotebook) -> None:
    passed = pair.succeed("%%sky\nbreakpoint()\nprint('past it')")
    assert passed.stdout == "past it\n"
    assert "rank 0 goes on at breakpoint() (cell [" in passed.stderr
    stopped = pair.run("%%sky --pdb --ranks 1\nraise ValueError(3)")
    assert "--pdb: this page takes no input, so no rank stops at an error" in stopped.stderr
    assert stopped.traceback.endswith("ValueError: 3\non rank 1 (node 1)")
    assert "the debugger needs somebody to type its commands" in pair.run("%debug").sentence


def test_a_page_needs_jupyters_server(pair: LiveNotebook) -> None:
    assert "use `%sky forward` in JupyterLab or Notebook" in pair.run("%sky forward 6006").sentence
    assert "name one rank, as in `%sky forward 6006 --rank 2`" in (
        pair.run("%sky forward 6006 --rank 0-1").sentence
    )


def test_a_run_in_the_background_goes_on_and_says_so(pair: LiveNotebook) -> None:
    pair.succeed(
        "%%sky --background --stdout all --gather mark\n"
        "import torch.distributed as dist\nfor mark in range(3):\n    breakpoint()\n"
        "mark = [mark, dist.get_rank()]"
    )
    pair.succeed("run = _\nfound = run.result(60)")
    assert pair.value("found") == {"mark": [[2, 0], [2, 1]]}
    said = pair.value("run.output.splitlines()")
    for rank in (0, 1):
        sentence = f"rank {rank} goes on at breakpoint() (cell ["
        assert len([line for line in said if sentence in line]) == 1


def test_calls_on_a_pool_stop_too(opened: Callable[..., LiveNotebook]) -> None:
    notebook = opened()
    notebook.succeed("import jupyter_sky as sky\npool = sky.ComputePool(nodes=2).__enter__()")
    wait_for_all(notebook)
    try:
        cell = talk(
            notebook,
            "@sky.compute\n"
            "def halve(number):\n"
            "    share = number / 2\n"
            "    breakpoint()\n"
            "    return share + 1\n"
            "print('it is', halve(7) @ pool)",
            "p share, number",
            "share = 40",
            "ranks all",
            "c",
        )
        assert cell.error is None, cell.traceback
        assert "(3.5, 7)\n" in cell.stdout
        assert cell.stdout.endswith("it is [41, 4.5]\n")
        failed = notebook.run("sky.compute(lambda number: 1 / (number - 3))(3) @ pool")
        assert "ZeroDivisionError" in failed.traceback
        after = talk(notebook, "%debug", "p number", "q")
        assert "\n3\n" in after.stdout
        # Many calls at once ask nobody.
        many = notebook.run("pool.map(halve, [1, 2])", keyboard=True)
        assert many.data[-1]["text/plain"] == "[1.5, 2.0]"
        assert "nobody can be asked in the background, in one of many calls" in many.stderr
        notebook.run("pool.map(lambda number: 1 / number, [0])")
        assert "ranks keep no frames of calls that they take one by one" in (
            notebook.run("%debug", keyboard=True).sentence
        )
    finally:
        notebook.succeed("pool.__exit__(None, None, None)")
