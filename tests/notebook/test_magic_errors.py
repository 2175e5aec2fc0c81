"""Errors and Stop in a real notebook: the cell fails as it should, and the next one runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbclient
import nbformat
import psutil
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from tests.conftest import processes_of
from tests.notebook.kernels import PATIENCE, LiveNotebook, without_colours
from tests.waiting import until

FAILING = """\
%%sky --nodes 2
import torch.distributed as dist


def check(rank):
    if rank == 1:
        raise LookupError(f"rank {rank} has no data")


check(dist.get_rank())
dist.barrier()"""


def notebook_that_fails(after: Path) -> nbformat.NotebookNode:
    """A notebook whose second cell fails; its last one leaves a file."""
    cells = ["%load_ext jupyter_sky", FAILING, f"open({str(after)!r}, 'w').close()"]
    return new_notebook(cells=[new_code_cell(source) for source in cells])


def test_a_failing_cell_fails_the_notebook(others: None, tmp_path: Path) -> None:
    after = tmp_path / "after"
    notebook = notebook_that_fails(after)
    with pytest.raises(CellExecutionError) as caught:
        nbclient.NotebookClient(notebook, kernel_name="python3", timeout=PATIENCE).execute()
    assert caught.value.ename == "LookupError"
    assert caught.value.evalue == "rank 1 has no data"
    shown = without_colours(caught.value.traceback)
    assert 'raise LookupError(f"rank {rank} has no data")' in shown
    assert "check(dist.get_rank())" in shown
    assert shown.endswith("LookupError: rank 1 has no data\non rank 1 (node 1)\n")
    assert "jupyter_sky" not in shown
    assert not after.exists()


def test_an_error_says_what_cannot_be_encoded(pair: LiveNotebook) -> None:
    cell = pair.run(
        "%%sky\nerror = ValueError('lone \\ud800')\n"
        "error.said = {'\\udfff': ['\\udfff']}\nraise error"
    )
    assert cell.error is not None
    assert (cell.error["ename"], cell.error["evalue"]) == ("ValueError", r"lone \ud800")
    assert cell.snapshot["run"]["state"] == "error"
    assert r"ValueError: lone \ud800" in cell.traceback


def test_a_traceback_has_the_numbers_of_the_notebook(pair: LiveNotebook) -> None:
    pair.succeed("def here(x):\n    return 1 / x")
    pair.succeed("%%sky\ndef there(x):\n    return here(x)")
    number = pair.value("len(In)")  # of the next cell
    assert [
        line
        for line in pair.run("\n%%sky\n\nthere(0)").traceback.splitlines()
        if line.startswith(("Cell", "---->"))
    ] == [
        f"Cell In[{number}], line 4",
        "----> 4 there(0)",
        f"Cell In[{number - 2}], line 3, in there(x)",
        "----> 3     return here(x)",
        f"Cell In[{number - 3}], line 2, in here(x)",
        "----> 2     return 1 / x",
    ]
    threaded = "import threading\nthread = threading.Thread(target=there, args=(0,), name='T')\n"
    said = pair.succeed(f"%%sky\n{threaded}thread.start()\nthread.join()").stderr.splitlines()
    assert said[:4] == [
        "Exception in thread T:",
        "Traceback (most recent call last):",
        f"  Cell In[{number - 2}], line 3, in there",
        "    return here(x)",
    ]
    wrong = pair.run("%%sky\nx = = 1")
    assert wrong.traceback.startswith(f"  Cell In[{number + 2}], line 2\n    x = = 1\n")
    # What only the compiler finds has its line, too.
    late = pair.run("%%sky\n!true\nreturn 5")
    assert late.traceback == (
        f"  Cell In[{number + 3}], line 3\n    return 5\n    ^^^^^^^^\n"
        "SyntaxError: 'return' outside function"
    )
    # Python's sentence counts the same lines.
    inner = pair.run("%%sky\n\nif True:\nprint(1)")
    assert inner.error["evalue"] == (
        "expected an indented block after 'if' statement on line 3 (line 4)"
    )
    assert inner.traceback.startswith(f"  Cell In[{number + 4}], line 4\n    print(1)\n")
    timed = pair.run("%%sky\n%%time\n'unterminated")
    assert timed.error["evalue"] == "unterminated string literal (detected at line 3) (line 3)"


def test_what_a_cell_defines_has_its_lines_where_it_is_brought_to(pair: LiveNotebook) -> None:
    number = pair.value("len(In)")  # of the next cell
    pair.succeed(
        "\n%%sky --out invert\n\ndef invert(x):\n    return 1 / x\n\n"
        "class Half:\n    def of(self, x):\n        return x / self.by"
    )
    pair.succeed("%sky pull Half")
    for call, where in {
        "invert(0)": "line 5, in invert(x)\n      4 def invert(x):\n----> 5     return 1 / x",
        "Half().of(1)": "line 9, in Half.of(self, x)\n      8 def of(self, x):\n"
        "----> 9     return x / self.by",
    }.items():
        assert f"\nCell In[{number}], {where}\n" in pair.run(call).traceback
    source = pair.value("__import__('inspect').getsource(invert)")
    assert source == "def invert(x):\n    return 1 / x\n"
    # The notebook's own cells stay as they are, also where what they define comes back.
    own = pair.value("len(In)")
    pair.succeed("def here(x):\n    return 1 / x")
    pair.succeed("%%sky --out here\nhere.used = True")
    assert f"\nCell In[{own}], line 2, in here(x)\n" in pair.run("here(0)").traceback


def test_a_cell_that_auto_sends_has_its_own_lines(pair: LiveNotebook) -> None:
    pair.succeed("%sky auto on")
    try:
        assert "---> 2 1 / 0" in pair.run("x = 0\n1 / 0").traceback
        assert "---> 3 1 / 0" in pair.run("%%sky\nx = 0\n1 / 0").traceback
    finally:
        pair.succeed("%sky auto off")


def test_an_error_that_the_cell_shows_itself_has_its_lines_too(pair: LiveNotebook) -> None:
    # As `rich.traceback.install()` does; of a rank whose output is not shown, nobody would see it.
    pair.succeed(
        "%%sky --ranks 1\n"
        "def show(kind, error, lines): print('shown:', error)\n"
        "shell = get_ipython()\n"
        "shell._showtraceback = show"
    )
    number = pair.value("len(In)")  # of the next cell
    cell = pair.run("%%sky --ranks 1\nraise LookupError('no data')")
    pair.succeed("%%sky --ranks 1\ndel shell._showtraceback")
    assert cell.stdout == "shown: no data\n"
    assert re.sub(r" +", " ", cell.traceback) == (
        f"{'-' * 75}\nLookupError Traceback (most recent call last)\n"
        f"Cell In[{number}], line 2\n"
        "----> 2 raise LookupError('no data')\n\n"
        "LookupError: no data\non rank 1 (node 1)"
    )


def test_what_was_printed_before_an_error_is_shown(pair: LiveNotebook) -> None:
    cell = pair.run("%%sky\nprint('before')\n1 / 0")
    assert cell.stdout == "before\n"
    assert cell.error["ename"] == "ZeroDivisionError"
    assert cell.traceback.endswith(
        "ZeroDivisionError: division by zero\non ranks 0-1 (node 0, node 1)"
    )


def test_an_interrupt_that_the_code_raises_is_an_error_of_it(pair: LiveNotebook) -> None:
    cell = pair.run("%%sky\nraise KeyboardInterrupt('mine')")
    assert cell.sentence == "KeyboardInterrupt: mine (on ranks 0-1 (node 0, node 1))"
    cell = pair.run("%%sky\nraise KeyboardInterrupt")
    assert cell.sentence == "KeyboardInterrupt (on ranks 0-1 (node 0, node 1))"


def test_an_error_can_be_caught_in_the_notebook(pair: LiveNotebook) -> None:
    cell = pair.succeed(
        "try:\n"
        "    get_ipython().run_cell_magic('sky', '--ranks 1', 'raise KeyError(rank)')\n"
        "except KeyError as error:\n"
        "    print(error.rank, error.host, len(error.failures))"
    )
    assert cell.stdout == "1 node 1 1\n"


def test_nothing_is_bound_when_the_cell_fails(pair: LiveNotebook) -> None:
    pair.succeed("kept = 'as it was'")
    cell = pair.run("%%sky --out kept,later\nkept = 1\nraise ValueError\nlater = 2")
    assert cell.traceback.endswith("\n--out brought nothing: `%sky pull kept` does.")
    assert pair.value("kept") == "as it was"


def test_of_names_some_of_which_cannot_be_brought_the_others_are_advised(
    pair: LiveNotebook,
) -> None:
    cell = pair.run(
        "%%sky --out lock,kept,db\nimport sqlite3, threading\n"
        "lock, kept, db = threading.Lock(), 1, sqlite3.connect(':memory:')"
    )
    assert "lock cannot be brought to the notebook: it is a lock." in cell.traceback
    assert "db cannot be brought to the notebook: it is a connection to a data" in cell.traceback
    assert cell.traceback.endswith("\n--out brought nothing: `%sky pull kept` does.")


@pytest.mark.parametrize(
    "waiting",
    [
        "while True: time.sleep(0.01)",
        "time.sleep(600)",
        # The others wait inside of the collective, where no Python runs.
        "time.sleep(600) if rank else dist.barrier()",
        "!sleep 600",
    ],
)
def test_stop_stops_all_ranks_and_the_next_cell_runs(pair: LiveNotebook, waiting: str) -> None:
    cell = pair.start(
        "%%sky --stdout all --out stopped\n"
        "stopped = False\n"
        "try:\n"
        "    print('started')\n"
        f"    {waiting}\n"
        "except BaseException:\n"
        "    stopped = True\n"
        "    raise"
    )
    pair.until(cell, lambda cell: cell.stdout.count("started") == 2)
    pair.interrupt()
    pair.finish(cell)
    assert cell.sentence.startswith("KeyboardInterrupt: ranks 0-1 stopped after ")
    assert cell.sentence.endswith("--out brought nothing: `%sky pull stopped` does.")
    pair.succeed("%sky pull stopped")
    assert pair.value("stopped") is True
    pair.succeed(
        "%%sky --gather after\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "after = (stopped, total.item(), rank)"
    )
    assert pair.value("after") == [(True, 2.0, 0), (True, 2.0, 1)]


# The process that ranks come from waits for a file where it imports torch.
SLOW_IMPORT = """
import os, sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        while name == "torch" and not os.path.exists({go!r}):
            time.sleep(0.01)

if "jupyter_sky.node.forking.fork_server" in sys.orig_argv:
    sys.meta_path.insert(0, Slow())
"""


def test_stop_while_the_cluster_starts_leaves_nothing(opened, home: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT.format(go=str(go)))
    notebook = opened(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    before = set(processes_of(home))
    cell = notebook.start("%%sky --nodes 2\nprint('ran')")
    notebook.until(cell, lambda cell: cell.shown)
    until(lambda: any("fork_server" in str(each.cmdline()) for each in processes_of(home)))
    notebook.interrupt()
    notebook.finish(cell)
    _, left = psutil.wait_procs(set(processes_of(home)) - before, timeout=60)
    for process in left:
        process.kill()
    assert not left
    go.touch()
    assert cell.sentence.startswith("KeyboardInterrupt")
    assert cell.stdout == ""
    assert notebook.succeed("%%sky --nodes 1\nprint('ran')").stdout == "ran\n"


def test_an_interrupt_from_elsewhere_fails_the_cell(pair: LiveNotebook) -> None:
    cell = pair.run("%%sky\nif rank == 1: raise KeyboardInterrupt")
    assert cell.error is not None


def test_the_error_of_each_rank_can_be_asked_for(pair: LiveNotebook) -> None:
    pair.succeed(
        "try:\n"
        "    get_ipython().run_cell_magic('sky', '', 'raise (KeyError, ValueError)[rank](rank)')\n"
        "except (KeyError, ValueError) as error:\n"
        "    each = {each.rank: type(each).__name__ for each in error.exceptions}"
    )
    assert pair.value("each") == {0: "KeyError", 1: "ValueError"}


def test_an_exception_group_is_shown_as_python_shows_it(pair: LiveNotebook) -> None:
    cell = pair.run("%%sky\nraise ExceptionGroup('several', [ValueError(1), TypeError(2)])")
    assert "| ExceptionGroup: several (2 sub-exceptions)" in cell.traceback
    assert "| ValueError: 1" in cell.traceback and "| TypeError: 2" in cell.traceback
    assert "Cell In[" in cell.traceback
    assert "jupyter_sky" not in cell.traceback and cell.stderr == ""


def test_errors_with_other_causes_are_not_shown_as_one(pair: LiveNotebook) -> None:
    number = pair.value("len(In)")  # of the next cell
    cell = pair.run(
        "%%sky\ndef load():\n    raise (KeyError, FileNotFoundError)[rank]('shard-2')\n"
        "try:\n    load()\nexcept Exception as error:\n    raise RuntimeError('no data') from error"
    )
    first, other = cell.traceback.splitlines()[-2:]
    ranks = {f"on rank {rank} (node {rank})": rank for rank in (0, 1)}
    error = ("FileNotFoundError: shard-2", "KeyError: 'shard-2'")[ranks[first]]
    assert other.startswith(f"{error} (cell [{number}], line 3) on rank {1 - ranks[first]} (")


def test_sys_exit_ends_the_cell_and_not_the_rank(pair: LiveNotebook) -> None:
    cell = pair.run("%%sky\nimport sys\nsys.exit('no data')")
    assert cell.sentence == (
        "SystemExit: the cell called sys.exit('no data'); the rank and its variables stay. "
        "(on ranks 0-1 (node 0, node 1))"
    )
    assert cell.stderr == ""
    assert pair.succeed("%%sky\nprint(rank)").stdout == "0\n"


def test_a_cell_that_forms_a_second_group_is_told_that_there_is_one(pair: LiveNotebook) -> None:
    cell = pair.run("%%sky\nimport torch.distributed as dist\ndist.init_process_group('gloo')")
    assert "process group before any cell runs: leave out `init_process_group`" in cell.traceback


@pytest.mark.parametrize("call", ["exit()", "quit"])
def test_exit_ends_the_cell_as_sys_exit_does(pair: LiveNotebook, call: str) -> None:
    cell = pair.run(f"%%sky\n{call}")
    assert cell.sentence == (
        "SystemExit: the cell called sys.exit(); the rank and its variables stay. "
        "(on ranks 0-1 (node 0, node 1))"
    )
    assert re.search(r"SystemExit$", cell.strips[-1]["text/plain"], re.MULTILINE)
    assert pair.succeed("%%sky\nprint(rank)").stdout == "0\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("%sky status", "%sky is not there on the ranks: type it in a cell of its own."),
        (
            "%%sky\n1",
            "`%%sky` is above this cell already: put what is below the second one into a cell of "
            "its own.",
        ),
        (
            "1\n%%sky --nodes 2\n2",
            "`%%sky` is above this cell already: put what is below the second one into a cell of "
            "its own.",
        ),
        # Each rank would start clusters of its own.
        (
            "%load_ext jupyter_sky\n%sky up --nodes 1",
            "%sky is not there on the ranks: type it in a cell of its own.",
        ),
        ("%no_such_magic", "Line magic function `%no_such_magic` not found."),
    ],
)
def test_a_magic_that_ranks_lack_is_one_sentence(pair: LiveNotebook, code: str, said: str) -> None:
    cell = pair.run(f"%%sky\n{code}")
    assert cell.sentence == f"UsageError: {said} (on ranks 0-1 (node 0, node 1))"
    assert cell.stderr == ""


def test_a_magic_that_only_the_notebook_has_gets_advice(pair: LiveNotebook) -> None:
    pair.succeed(
        "from IPython.core.magic import register_cell_magic, register_line_magic\n"
        "@register_line_magic\ndef shout(line): return line.upper()\n"
        "@register_cell_magic\ndef whole(line, cell): return cell"
    )
    advice = (
        "; the notebook has {0}, and the ranks have not: load its extension in a `%%sky` cell, or "
        "define it there; or type {0} in a cell of its own"
    )
    assert pair.run("%%sky\n%shout a").sentence.endswith(advice.format("%shout"))
    assert pair.run("%%sky\n%%whole\na").sentence.endswith(advice.format("%%whole"))
    # It is not one for whole cells here, either.
    assert pair.run("%%sky\n%%shout\na").sentence.endswith("(on ranks 0-1 (node 0, node 1))")


def test_an_error_that_cannot_be_sent_arrives_with_its_name_and_text(pair: LiveNotebook) -> None:
    cell = pair.run(
        "%%sky\n"
        "import threading\n"
        "class Odd(Exception):\n"
        "    def __init__(self, one, two):\n"
        "        super().__init__('odd one')\n"
        "        self.lock = threading.Lock()\n"
        "raise Odd(1, 2)"
    )
    assert cell.traceback.endswith("Odd: odd one\non ranks 0-1 (node 0, node 1)")


@pytest.mark.parametrize("asking", ["input('name? ')", "import getpass; getpass.getpass()"])
def test_a_rank_has_no_keyboard(pair: LiveNotebook, asking: str) -> None:
    cell = pair.run(f"%%sky\n{asking}")
    assert "does not work on a rank: call it in a cell of the notebook" in cell.traceback
    assert "keyboard.py" not in cell.traceback  # it ends at the user's line


@pytest.mark.parametrize(("magic", "says"), [("%debug", "%debug"), ("%pdb on", "`%%sky --pdb`")])
def test_the_debugger_of_ipython_says_where_it_belongs(
    pair: LiveNotebook, magic: str, says: str
) -> None:
    assert pair.run(f"%%sky\n{magic}").sentence.startswith(f"UsageError: type {says} ")
    assert pair.run("%%sky\n1 / 0").traceback.count("Traceback") == 1  # nothing was turned on


def test_a_crash_says_signal_rank_host_and_where_it_was(opened) -> None:
    notebook = opened()
    notebook.succeed("%%sky --nodes 2\nimport ctypes, torch.distributed as dist")
    cell = notebook.run(
        "%%sky --stdout all\n"
        "print('the last line', flush=True)\n"
        "if dist.get_rank() == 1: ctypes.string_at(0)\n"
        "dist.barrier()"
    )
    lines = cell.traceback.splitlines()
    assert lines[0].startswith("RankLost: rank 1 is lost: it was killed by SIGSEGV. It restarts")
    assert lines[1] == "    Fatal Python error: Segmentation fault"
    assert "string_at" in cell.traceback and lines[-1] == "on rank 1 (node 1)"
    aborted = notebook.run(
        "%%sky --ranks 0\nimport os\n"
        "os.write(2, b'terminate called\\n  what():  no room\\n')\nos.abort()"
    )
    said = "    terminate called\n      what():  no room\n    Fatal Python error: Aborted"
    assert said in aborted.traceback
    assert re.search(r"\n      Cell In\[\d+\], line 4 in <module>\non rank 0", aborted.traceback)
    deep = notebook.run(
        "%%sky --ranks 0\nimport os\n"
        "def deeper(left):\n    return deeper(left - 1) if left else os.abort()\n"
        "import functools; functools.reduce(lambda *_: deeper(60), [1, 2])"
    )
    assert re.search(r"Cell In\[\d+\], line 4 in deeper", deep.traceback)
    assert "Traceback" not in cell.stderr  # of the rank that the other left in the collective
    killed = notebook.run(
        "%%sky\nimport os\nprint('the last line', flush=True)\nos.kill(os.getpid(), 9)"
    )
    # The one that was seen to end first.
    assert re.search(r"rank [01] is lost: it was killed by SIGKILL", killed.traceback)
    assert "the last line" in killed.traceback


def test_a_rank_that_began_empty_is_said_to_have_other_values_than_the_rest(
    pair: LiveNotebook,
) -> None:
    pair.succeed("import math, torch\nscale, count, seen, name, parts = 0.5, 0, [], 'x', {'n': 0}")
    pair.succeed(
        "%%sky\nimport torch\ncount = count + 1\nseen.append(name)\nparts['n'] += 1\n"
        "assert scale < math.pi"
    )
    pair.run("%%sky --ranks 1\nimport os; os.kill(os.getpid(), 9)")
    use = "%%sky --stdout all\ntorch.ones(1) * scale * math.pi\nprint(name, count, seen)"
    mixed = pair.succeed(use)
    assert sorted(mixed.stdout.splitlines()) == ["0 │ x 1 ['x']", "1 │ x 0 []"]
    [notice] = mixed.shown
    assert notice.partition(": ")[2] == (
        "rank 1 began empty and was given the notebook's `count` and `seen`, while other ranks "
        "have theirs as earlier cells left them: `%sky push count seen` gives all ranks the "
        "notebook's"
    )
    assert not pair.succeed(use).shown  # once
    pair.succeed("%sky push count seen")
    alike = pair.succeed(use)
    assert sorted(alike.stdout.splitlines()) == ["0 │ x 0 []", "1 │ x 0 []"]
    pair.succeed("parts['m'] = 1")  # which leaves the others what they have counted
    mixed = pair.succeed("%%sky --stdout all\nprint(parts)")
    assert sorted(mixed.stdout.splitlines()) == ["0 │ {'n': 1, 'm': 1}", "1 │ {'n': 0, 'm': 1}"]
    assert "given the notebook's `parts`, while other ranks have theirs" in mixed.shown[0]


# The last one: with what it imports, a rank takes a quarter of a second for each error.


def test_a_model_whose_last_step_was_cut_off_trains_on(pair: LiveNotebook) -> None:
    pair.run(
        "%%sky\nimport torch\nfrom torch.nn import Linear, Sequential\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "ddp = DistributedDataParallel(Sequential(Linear(1, 1), Linear(1, 1)))\n"
        "def fail(gradient): raise MemoryError\n"
        "def cut_off(module, given, out): out.register_hook(fail)\n"
        "cut = ddp.module[0].register_forward_hook(cut_off)\n"
        "ddp(torch.ones(1, 1)).backward()"
    )
    pair.succeed("%%sky\ncut.remove()\nddp(torch.ones(1, 1)).backward()")
