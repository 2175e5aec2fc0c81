"""``jupyter sky run``: as in the notebook, with an exit status, and nothing left running."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.notebook import kernel
from jupyter_sky.notebook.output.progress import NoticeLine
from jupyter_sky.notebook.programs.cells import read_cells
from jupyter_sky.notebook.programs.run import _Program
from tests.notebook.programs.conftest import Terminal, write_notebook
from tests.paths import ROOT

RANK = "import jupyter_sky as sky\nrank = sky.instance_info().rank"

WAITS = "while True: time.sleep(0.05)"
"""What cells in this process do until they are stopped.

Python begins one long sleep even where a signal came just before, once in 60,000 times: then it
ends with the next signal.
"""


def test_a_notebook_runs_to_its_end(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("scale = 3")
    notebook = write_notebook(
        tmp_path / "train.ipynb",
        "%load_ext jupyter_sky\nfrom beside import scale",
        f"%%sky --nodes 2 --out total --gather rank\n{RANK}\ntotal = scale * 5\nprint('hello')",
        "total, rank",
    )
    done = terminal.sky("run", str(notebook))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["hello", "Out[3]: (15, [0, 1])"]
    starting, ready, ended, finished = done.stderr.splitlines()
    assert "starting 2 local nodes" in starting and "2 ranks on CPU, ready in" in ready
    assert ended.startswith("train.ipynb: train-") and ended.endswith("nothing is left running")
    assert finished.startswith("train.ipynb: finished after 3 cells and ")
    assert registry.rows() == []


def test_options_take_the_place_of_those_of_cells(terminal: Terminal, tmp_path: Path) -> None:
    line = "%%sky --nodes 2 --plugin torch --gather rank,modules"
    modules = "import sys\nmodules = 'torch' in sys.modules"
    write_notebook(tmp_path / "a.ipynb", f"{line}\n{RANK}\n{modules}", "rank, modules")
    done = terminal.sky("run", "a.ipynb", "--nodes", "3", "--plugin", "none")
    assert done.stdout.splitlines()[-1] == "Out[2]: ([0, 1, 2], [False, False, False])", done.stderr


def test_its_cells_run_and_print_where_it_says_unless_they_say_it(
    terminal: Terminal, tmp_path: Path
) -> None:
    for name in ("data", "code", "other"):
        (tmp_path / name).mkdir()
    where = "print(Path.cwd().name, flush=True)"
    code = f"from pathlib import Path\nimport jupyter_sky as sky\n{where}"
    (tmp_path / "code" / "a.py").write_text(code)
    write_notebook(
        tmp_path / "code" / "a.ipynb",
        f"%%sky\n{code}",
        f"%%sky --stdout 1 --workdir ../other\n{where}",
        "%%sky --sh\npwd",
        "%%sky --stdout none\nprint('hidden')",
    )
    options = "--nodes", "3", "--workdir", "data", "--stdout"
    done = terminal.sky("run", "code/a.py", *options, "0,2")
    assert sorted(done.stdout.splitlines()) == ["0 │ data", "2 │ data"], done.stderr
    # What is named on the command line is in its folder, also where a notebook runs in its own.
    (tmp_path / "packages.txt").write_text("pip")
    done = terminal.sky("run", "code/a.ipynb", *options, "all", "--env", "packages.txt")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:3]) == ["0 │ data", "1 │ data", "2 │ data"]
    assert lines[3] == "other"
    assert {line[4:] for line in lines[4:]} == {str(tmp_path / "data")} and len(lines) == 7


@pytest.mark.parametrize(
    ("cell", "status", "said"),
    [
        ("%%sky --nodes 1\nraise ValueError('mine')", 1, "ValueError: mine"),
        ("%%sky --nodes 1\nx = ", 2, "SyntaxError"),
        ("%%sky --nodes 1 --sh\nexit 7", 7, "status 7"),
        ("%%sky --nodes 1 --sh\nexit 200", 200, "a.ipynb: cell 1 of 2 failed"),
        ("%%sky --nods 1\npass", 2, "--nods"),
        ("import sys\nsys.exit(5)", 5, ""),
        ("import sys\nsys.exit('no data')", 1, "no data"),
        ("exit()", 0, ""),
        ("exit(4)", 4, ""),
    ],
)
def test_its_exit_status_says_how_it_ended(
    terminal: Terminal, tmp_path: Path, cell: str, status: int, said: str
) -> None:
    write_notebook(tmp_path / "a.ipynb", cell, "print('further')")
    done = terminal.sky("run", "a.ipynb")
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    if "exit" in cell:
        assert "SystemExit" not in done.stderr
    assert "further" not in done.stdout
    assert registry.rows() == []


def test_a_cell_may_be_tagged_to_fail(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(tmp_path / "a.ipynb", "1 / 0", tags=["raises-exception"])
    assert terminal.sky("run", "a.ipynb").returncode == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_it_and_ends_its_cluster(
    terminal: Terminal, tmp_path: Path, number: int, status: int
) -> None:
    code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    write_notebook(tmp_path / "a.ipynb", f"%%sky --nodes 2\n{code}", "print('further')")
    program = terminal.begin("run", "a.ipynb")
    assert program.stdout
    while program.stdout.readline() != "begun\n":  # it comes as it is printed
        assert program.poll() is None
    program.send_signal(number)
    out, err = program.communicate()
    assert program.returncode == status, err
    assert "cell 1 of 2 was stopped" in err and "further" not in out
    assert "nothing is left running" in err
    assert registry.rows() == []


_AT_RETURN = """\
import os, signal, sys

def at_return(frame, event, value):
    if event == "return" and frame.f_code.co_qualname == {name!r}:
        if {caller!r} in (None, frame.f_back.f_code.co_name):
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(at_return)
"""


@pytest.mark.parametrize(
    ("name", "caller"),
    [
        ("wait", "wait_with_cleanup"),
        ("Cluster.start", None),
        ("start_at_one", None),
        ("record_line", None),
    ],
)
def test_ctrl_c_in_the_moment_in_which_a_cluster_is_up_ends_it(
    terminal: Terminal, tmp_path: Path, name: str, caller: str | None
) -> None:
    stop = _AT_RETURN.format(name=name, caller=caller)
    write_notebook(tmp_path / "a.ipynb", stop, "%%sky --nodes 1\nprint('further')")
    done = terminal.sky("run", "a.ipynb")
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert registry.rows() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("event", ["pre_run_cell", "post_run_cell"])
def test_a_signal_between_cells_stops_it_before_the_next(
    terminal: Terminal, tmp_path: Path, number: int, event: str
) -> None:
    at_hook = (
        "import os, sys\n"
        "def at_hook(frame, event, value):\n"
        f"    if event == 'call' and frame.f_code.co_name == '_on_{event}':\n"
        f"        sys.setprofile(None)\n        os.kill(os.getpid(), {number})\n"
        "sys.setprofile(at_hook)"
    )
    write_notebook(tmp_path / "a.ipynb", "x = 1", at_hook, "print('further')")
    done = terminal.sky("run", "a.ipynb")
    assert (done.returncode, done.stdout) == (128 + number, ""), done.stderr
    assert " of 3 was stopped" in done.stderr


def test_under_nohup_it_goes_on_without_its_terminal(terminal: Terminal, tmp_path: Path) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGHUP)\nprint('goes on')"
    write_notebook(tmp_path / "a.ipynb", code)
    program = terminal.begin("run", "a.ipynb", under=["nohup"])
    out, err = program.communicate()
    assert (program.returncode, out) == (0, "goes on\n"), err
    # The tests themselves may run under it.
    program = terminal.begin("run", "a.ipynb", under=["env", "--default-signal=HUP"])
    out, err = program.communicate()
    assert (program.returncode, out) == (129, ""), err


def test_a_program_ends_with_its_terminal(terminal: Terminal, tmp_path: Path) -> None:
    code = f"import time\nprint('begun', flush=True)\n{WAITS}"
    write_notebook(tmp_path / "a.ipynb", code)
    screen, keyboard = pty.openpty()
    env = {**os.environ, **terminal.env, "PYTHONPATH": str(ROOT)}
    command = ["env", "--default-signal=HUP", sys.executable, "-m", "jupyter_sky", "run", "a.ipynb"]
    program = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdin=keyboard, stdout=keyboard, stderr=keyboard
    )
    os.close(keyboard)
    shown = b""
    while b"begun" not in shown:
        shown += os.read(screen, 65536)
    os.close(screen)
    program.send_signal(signal.SIGHUP)
    assert program.wait() == 129


def test_ctrl_c_shows_the_lines_of_the_program_alone(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(f"import time\nprint('begun', flush=True)\n{WAITS}")
    write_notebook(tmp_path / "a.ipynb", "x = 1\nimport beside")
    program = terminal.begin("run", "a.ipynb")
    assert program.stdout and program.stdout.readline() == "begun\n"
    program.send_signal(signal.SIGINT)
    _, err = program.communicate()
    assert "----> 2 import beside" in err and "a.ipynb: was stopped" in err
    assert ".py" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ranks_can_save_what_they_have_when_a_program_is_stopped(
    terminal: Terminal, tmp_path: Path, number: int
) -> None:
    code = (
        "import time\ntry:\n    print('begun', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('saving', flush=True)\n    time.sleep(1.5)\n"
        "    print('saved', flush=True)\n    raise\n"
    )
    (tmp_path / "train.py").write_text(code)
    program = terminal.begin("run", "train.py", "--nodes", "2", "--stdout", "all")
    assert program.stdout
    for _ in range(2):
        assert program.stdout.readline().endswith("begun\n")
    program.send_signal(number)
    out, err = program.communicate()
    assert program.returncode == 128 + number, err
    assert sorted(out.splitlines()) == ["0 │ saved", "0 │ saving", "1 │ saved", "1 │ saving"], err
    assert registry.rows() == []


@pytest.mark.parametrize("words", [(), ("--keep",)])
def test_runs_in_the_background_can_save_what_they_have_when_a_program_is_stopped(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...]
) -> None:
    saved = tmp_path / "saved"
    code = (
        "%%sky --nodes 1 --cluster kept --background\nimport pathlib, time\n"
        "try:\n    print('behind', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('saving', flush=True)\n    time.sleep(1.5)\n"
        f"    pathlib.Path({str(saved)!r}).touch()\n    raise\n"
    )
    waits = f"while 'behind' not in _.output: pass\nprint('begun', flush=True)\n{WAITS}"
    write_notebook(tmp_path / "a.ipynb", code, waits)
    program = terminal.begin("run", "a.ipynb", *words)
    assert program.stdout
    while program.stdout.readline() != "begun\n":
        assert program.poll() is None
    program.send_signal(signal.SIGINT)
    _, err = program.communicate()
    left = [row.name for row in registry.rows()]
    assert terminal.sky("down", "kept").returncode == (0 if left else 2)
    assert program.returncode == 130, err
    assert saved.exists(), err
    assert left == ["kept"] * len(words)


def test_ctrl_c_again_stops_code_that_has_caught_the_first_one(
    terminal: Terminal, tmp_path: Path
) -> None:
    code = (
        "import time\nfor word in ('first', 'second'):\n    try:\n        print(word, flush=True)\n"
        f"        {WAITS}\n    except BaseException:\n        print('caught', flush=True)\n{WAITS}"
    )
    write_notebook(tmp_path / "a.ipynb", code, "print('not reached')")
    program = terminal.begin("run", "a.ipynb")
    assert program.stdout
    for word in ("first", "second"):
        assert program.stdout.readline() == f"{word}\n"
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "caught\n"
    program.send_signal(signal.SIGINT)
    out, err = program.communicate()
    assert (program.returncode, out) == (130, ""), err
    assert "cell 1 of 2 was stopped" in err


def test_ctrl_c_is_not_lost_where_python_ignores_what_is_raised(
    terminal: Terminal, tmp_path: Path
) -> None:
    code = (
        "import os, signal, time\nclass Last:\n    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n        time.sleep(0)\n"
        "Last()\ntime.sleep(600)"
    )
    write_notebook(tmp_path / "a.ipynb", code)
    done = terminal.sky("run", "a.ipynb")
    assert done.returncode == 128 + signal.SIGTERM, done.stderr


def test_a_signal_that_does_not_wake_the_main_thread_stops_it(
    terminal: Terminal, tmp_path: Path
) -> None:
    """As of one that comes just before the code begins to wait, which ends no system call."""
    code = (
        "import signal, sys, threading, time\n"
        "def wait():\n    time.sleep(600)\n"
        "def stop(main):\n"
        "    while sys._current_frames()[main].f_code is not wait.__code__: time.sleep(0.01)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "threading.Thread(target=stop, args=[threading.get_ident()]).start()\n"
        "try:\n    wait()\nexcept KeyboardInterrupt:\n    print('woken')\n    raise"
    )
    write_notebook(tmp_path / "a.ipynb", code)
    done = terminal.sky("run", "a.ipynb")
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "woken\n"), done.stderr


def test_it_fails_when_its_cluster_is_ended_from_elsewhere(
    terminal: Terminal, tmp_path: Path
) -> None:
    code = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    write_notebook(tmp_path / "a.ipynb", f"%%sky --nodes 2 --cluster mine --retry 2\n{code}")
    program = terminal.begin("run", "a.ipynb")
    assert program.stdout
    while program.stdout.readline() != "begun\n":
        assert program.poll() is None
    down = terminal.sky("down", "mine")
    assert down.returncode == 0, down.stderr
    _, err = program.communicate()
    assert program.returncode == 1, err
    assert "ClusterLost: cluster mine was ended from elsewhere." in err
    assert "a.ipynb: failed" in err and "KeyboardInterrupt" not in err
    assert registry.rows() == []


def test_a_script_is_one_cell_on_all_ranks(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"import argparse\n{RANK}\nif __name__ == '__main__':\n"
        "    print('rank', rank, argparse.ArgumentParser().parse_args())"
    )
    done = terminal.sky("run", "train.py", "--nodes", "2")
    assert done.stdout.splitlines()[-1] == "rank 0 Namespace()", done.stderr
    assert done.returncode == 0


def test_a_script_finds_its_file_and_errors_have_its_lines(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "\nfrom pathlib import Path\nimport warnings\n\n"
        "def main():\n"
        "    print('in', Path(__file__).parent, Path(__file__).name)\n"
        "    warnings.warn('mine')\n"
        "    raise ValueError('line 8')\n\n"
        "main()\n"
    )
    done = terminal.sky("run", "train.py", "--nodes", "2")
    assert done.stdout.splitlines()[-1] == f"in {tmp_path} train.py", done.stderr
    assert "File train.py, line 7: UserWarning: mine" in done.stderr
    assert "----> 8 " in done.stderr and "File train.py, line 10\n" in done.stderr
    (tmp_path / "wrong.py").write_text("x = 1\ny = = 2\n")
    assert "File wrong.py, line 2\n" in terminal.sky("run", "wrong.py").stderr
    (tmp_path / "cells.py").write_text(
        "# %%\nprint(__file__)\ndef fail():\n    return 1 / 0\n"
        "# %%\n# %%time\n# %%sky --nodes 1\n\nprint(__file__)\nfail()\n"
    )
    done = terminal.sky("run", "cells.py")
    assert done.stdout.splitlines().count(str(tmp_path / "cells.py")) == 2  # here, on the rank
    # Lines are those of the file, whichever cell they are in, and in cells that run here, too.
    assert "File cells.py, line 10\n" in done.stderr
    assert "File cells.py, line 4, in fail()" in done.stderr
    (tmp_path / "cells.py").write_text(
        "# %%\n# %%sky --nodes 1 --out fail\n\ndef fail():\n    return 1 / 0\n# %%\nfail()\n"
    )
    done = terminal.sky("run", "cells.py")
    assert "----> 7 fail()\n" in done.stderr
    assert "File cells.py, line 5, in fail()\n" in done.stderr
    assert "----> 5     return 1 / 0\n" in done.stderr
    (tmp_path / "cells.py").write_text("x = 0\n# %%\n\n1 / x\n")
    assert "File cells.py, line 4\n" in terminal.sky("run", "cells.py").stderr


AS_PYTHON = """\
import logging, os, sys
from beside import name

logging.basicConfig(stream=sys.stdout, format="%(filename)s:%(lineno)d %(message)s")
print(os.getcwd(), sys.path[0], sys.argv, name, open("data.txt").read())
def divide(x):
    return 1 / x
try:
    divide(0)
except ZeroDivisionError:
    logging.exception("caught")
"""


def test_a_script_of_another_folder_prints_what_it_prints_in_python(
    terminal: Terminal, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (tmp_path / "data.txt").write_text("where the command was typed")
    (code / "beside.py").write_text("name = 'beside the script'\n")
    (code / "train.py").write_text(AS_PYTHON)
    alone = terminal.python("code/train.py", "--lr", "2")
    done = terminal.sky("run", "code/train.py", "--nodes", "1", "--", "--lr", "2")
    assert done.stdout == alone.stdout, done.stderr
    # One with cells is a notebook, which runs in its own folder, as editors run its cells.
    (code / "data.txt").write_text("beside the script, too")
    (code / "train.py").write_text(
        AS_PYTHON.replace("def", "# %%\ndef").replace("try", "# %%\ntry")
    )
    alone = Terminal(code, terminal.env).python("train.py")
    assert terminal.sky("run", "code/train.py").stdout == alone.stdout


def test_a_script_is_read_as_python_reads_it(terminal: Terminal, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "helper.py").write_text("name = 'beside the file'\n")
    # A mark that editors of Windows put there, and a script that is run through a link.
    (code / "train.py").write_bytes(b"\xef\xbb\xbf# %%\nimport helper\nprint(helper.name)\n")
    (tmp_path / "train.py").symlink_to(code / "train.py")
    done = terminal.sky("run", "train.py")
    assert (done.returncode, done.stdout) == (0, "beside the file\n"), done.stderr
    (tmp_path / "old.py").write_bytes("# coding: latin-1\nx = 'ü'\n".encode("latin-1"))
    assert "x = 'ü'" in read_cells(tmp_path / "old.py")[0].text


PARSED = """\
import argparse, sys
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("data")
    print(parser.parse_args())
    {end}
if __name__ == "__main__":
    sys.exit(main())
"""


def test_a_script_finds_its_arguments_here_and_on_every_rank(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "# %%\nimport sys\nhere = sys.argv\n"
        "# %%\n# %%sky --nodes 2 --gather there\nimport sys\nthere = sys.argv\nsys.exit(0)\n"
        "# %%\nprint(here)\nprint(there)\n"
    )
    done = terminal.sky(
        "run", "train.py", "--nodes", "2", "--", "--lr", "0.1", "--", "a file", "-h"
    )
    assert done.returncode == 0, done.stderr
    words = ["train.py", "--lr", "0.1", "--", "a file", "-h"]
    assert done.stdout.splitlines()[-2:] == [str(words), str([words, words])]


@pytest.mark.parametrize(
    ("words", "end", "status"),
    [
        (["--lr", "0.1", "data"], "return 0", 0),
        (["--lr", "high", "data"], "", 2),
        (["--help"], "", 0),
        (["data"], "sys.exit('no data')", 1),
    ],
)
def test_a_script_ends_as_python_would_end_it(
    terminal: Terminal, tmp_path: Path, words: list[str], end: str, status: int
) -> None:
    (tmp_path / "train.py").write_text(PARSED.replace("{end}", end))
    alone = terminal.python("train.py", *words)
    assert alone.returncode == status
    done = terminal.sky("run", "train.py", "--nodes", "2", "--", *words)
    assert done.returncode == status, done.stderr
    assert done.stdout == alone.stdout
    # How its cluster starts and ends, and how long it took, is around what is its own.
    _, _, *own, _, _ = done.stderr.splitlines(keepends=True)
    assert "".join(own) == alone.stderr
    assert registry.rows() == []


def test_a_program_without_a_terminal_says_what_to_do_for_an_answer(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("name = input('Name? ')")
    asked = terminal.sky("run", "train.py", "--nodes", "1")
    assert "RuntimeError: input() needs somebody at a terminal, and" in asked.stderr
    assert "give the answer as an argument (of `jupyter sky run`, behind `--`)" in asked.stderr


def test_a_rank_that_is_done_does_not_stop_the_others(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys, time\nimport jupyter_sky as sky\n"
        "if sky.instance_info().rank:\n    open('done', 'w').close()\n    sys.exit()\n"
        "while not os.path.exists('done'):\n    time.sleep(0.01)\n"
        "time.sleep(0.5)\nprint('whole')\n"
    )
    done = terminal.sky("run", "train.py", "--nodes", "2")
    assert done.returncode == 0 and done.stdout.endswith("whole\n"), done.stderr


def test_a_script_may_have_cells(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "# %% [markdown]\n# # Text\n# %%\n# %load_ext jupyter_sky\nx = 4\n"
        f"# %%\n# %%sky --nodes 2 --gather rank\n{RANK} + x\n# %% the end\nprint(rank)\n"
        '# %% magic_args="--out said" language="bash"\n# x="of bash"\n#\n# echo $x\n'
        "# In[5]:\n\n\nprint(said)\n"  # as nbconvert has it
    )
    done = terminal.sky("run", "train.py")
    assert done.stdout.splitlines()[-3:-1] == ["[4, 5]", "of bash"], done.stderr


def test_it_waits_for_what_is_in_the_background(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "a.ipynb",
        "%%sky --nodes 1 --background\nimport time\ntime.sleep(1)\nopen('written', 'w').close()",
        "%%sky --background\nraise ValueError('late')",
    )
    done = terminal.sky("run", "a.ipynb")
    assert (tmp_path / "written").exists()
    assert done.returncode == 1 and "late" in done.stderr


def test_what_is_printed_in_the_background_is_shown(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "a.ipynb",
        "%%sky --nodes 2 --background\nprint('first')",
        "asked = _\nasked.result()\nprint('asked')\nasked",
        "%%sky --sh --background\nuntil [ -e go ]; do sleep 0.01; done; echo second",
        "%%sky --background\nprint('third', end='')\nraise ValueError('late')",
        "print('here')\nopen('go', 'w').close()",
    )
    done = terminal.sky("run", "a.ipynb")
    lines = [line for line in done.stdout.splitlines() if line[0] != "<" and ": " not in line]
    assert lines == ["asked", "first", "here", "second", "third"], done.stderr
    assert done.returncode == 1 and "late" in done.stderr
    assert "waiting for its turn" not in done.stderr
    write_notebook(
        tmp_path / "b.ipynb",
        "%%sky --nodes 1 --background\nprint('printed')\nopen('said', 'w').close()",
        "import os\nwhile not os.path.exists('said'): pass\n_.result()\n1 / 0",
    )
    done = terminal.sky("run", "b.ipynb")
    assert "printed" in done.stdout.splitlines(), done.stderr


def test_a_cluster_may_stay(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(tmp_path / "a.ipynb", "%%sky --nodes 1 --cluster kept\nx = 5")
    done = terminal.sky("run", "a.ipynb", "--keep")
    assert done.returncode == 0 and "kept stays up: `jupyter sky down kept` ends it" in done.stderr
    assert "; a cluster of local nodes ends 1 min after the last notebook or program" in done.stderr
    (tmp_path / "unnamed.py").write_text("pass")
    lacks = terminal.sky("run", "unnamed.py").stderr
    assert "there is no cluster of this program: there is kept; `--cluster kept` uses it." in lacks
    # Another program uses it, and leaves it as it found it.
    write_notebook(tmp_path / "b.ipynb", "%%sky --cluster kept\nprint(x)")
    again = terminal.sky("run", "b.ipynb")
    assert again.stdout.splitlines()[-1] == "5", again.stderr
    assert [row.name for row in registry.rows()] == ["kept"]
    assert terminal.sky("down", "kept").returncode == 0


def test_a_cluster_stays_while_another_program_has_a_run_there(
    terminal: Terminal, tmp_path: Path
) -> None:
    waits = (
        "import os, time\nprint('begun', flush=True)\n"
        "while not os.path.exists('{}'): time.sleep(0.01)"
    )
    write_notebook(tmp_path / "a.ipynb", f"%%sky --nodes 1 --cluster ci\n{waits.format('first')}")
    write_notebook(tmp_path / "b.ipynb", f"%%sky --cluster ci\n{waits.format('second')}\nprint(5)")
    first = terminal.begin("run", "a.ipynb")
    assert first.stdout and first.stdout.readline() == "begun\n"
    second = terminal.begin("run", "b.ipynb")
    assert second.stderr
    while "this one begins when that is over" not in second.stderr.readline():
        assert second.poll() is None
    (tmp_path / "first").touch()
    _, err = first.communicate()
    assert first.returncode == 0, err
    assert "ci stays up, as another notebook or program has a run there: `jupyter sky down" in err
    (tmp_path / "second").touch()
    out, err = second.communicate()
    assert (second.returncode, out) == (0, "begun\n5\n"), err
    assert terminal.sky("down", "ci").returncode == 0


def test_a_cluster_may_stay_after_ctrl_c_and_nothing_runs_on_it(
    terminal: Terminal, tmp_path: Path
) -> None:
    waits = "import time\nprint('{}', flush=True)\ntime.sleep(600)"
    cells = (
        f"%%sky --nodes 1 --cluster kept --background\nx = 5\n{waits.format('behind')}",
        "while 'behind' not in _.output: pass\nprint('begun', flush=True)\nimport time\n"
        "time.sleep(600)",
    )
    write_notebook(tmp_path / "a.ipynb", *cells)
    program = terminal.begin("run", "a.ipynb", "--keep")
    assert program.stdout
    while program.stdout.readline() != "begun\n":
        assert program.poll() is None
    program.send_signal(signal.SIGINT)
    _, err = program.communicate()
    assert program.returncode == 130, err
    assert "kept stays up: `jupyter sky down kept` ends it" in err
    assert [row.name for row in registry.rows()] == ["kept"]
    # Its turn comes at once, and the ranks have their variables.
    write_notebook(tmp_path / "b.ipynb", "%%sky --cluster kept\nprint(x)")
    again = terminal.sky("run", "b.ipynb")
    assert again.stdout.splitlines()[-1] == "5", again.stderr
    assert terminal.sky("down", "kept").returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.ipynb"], "none.ipynb cannot be read (No such file or directory)"),
        (["heer.py"], "heer.py cannot be read (No such file or directory): did you mean here.py?"),
        (["broken.ipynb"], "broken.ipynb is no notebook of today's format"),
        (["data.csv"], "data.csv is neither a notebook (.ipynb) nor a script (.py)"),
        ([], "takes the name of a file, as in `jupyter sky run train.ipynb`"),
        (["here.py", "--lr", "2"], "arguments of the notebook or script stand behind `--`"),
        (["here.py", "--nodes", "2"], "no cell of here.py begins with `%%sky`"),
    ],
)
def test_what_cannot_be_run_is_said(
    terminal: Terminal, tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "broken.ipynb").write_text("{")
    (tmp_path / "data.csv").write_text("1,2")
    (tmp_path / "here.py").write_text("# %%\nprint(1)\n")
    done = terminal.sky("run", *words)
    assert done.returncode == 2 and said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_pipe_that_ends_stops_it(terminal: Terminal, tmp_path: Path) -> None:
    """As of ``jupyter sky run train.ipynb | head``."""
    code = "import time\nwhile True:\n    print('on', flush=True)\n    time.sleep(0.05)"
    write_notebook(tmp_path / "a.ipynb", f"%%sky --nodes 1\n{code}")
    program = terminal.begin("run", "a.ipynb")
    assert program.stdout and program.stderr
    while program.stdout.readline() != "on\n":
        assert program.poll() is None
    program.stdout.close()
    *_, ended, end = program.stderr.read().splitlines()
    assert ended.endswith("nothing is left running") and "with status 1" in end
    assert program.wait() == 1
    assert registry.rows() == []


def test_a_pipe_that_ends_while_the_cluster_starts_ends_it(
    terminal: Terminal, tmp_path: Path
) -> None:
    """As of ``jupyter sky run train.ipynb | head -1``."""
    write_notebook(tmp_path / "a.ipynb", "%%sky --nodes 1\nprint('on')")
    program = terminal.begin("run", "a.ipynb")
    assert program.stdout and program.stderr
    assert "starting 1 local node" in program.stderr.readline()
    program.stdout.close()
    *_, end = program.stderr.read().splitlines()
    assert "with status 1" in end and program.wait() == 1
    assert registry.rows() == []


def test_a_full_disk_ends_it_with_a_sentence(terminal: Terminal, tmp_path: Path) -> None:
    """As of ``jupyter sky run train.ipynb > log.txt``."""
    code = "import time\nwhile True:\n    print('on', flush=True)\n    time.sleep(0.05)"
    write_notebook(tmp_path / "a.ipynb", f"%%sky --nodes 1\n{code}")
    program = terminal.begin("run", "a.ipynb", under=["sh", "-c", 'exec "$@" > /dev/full', "sh"])
    _, err = program.communicate()
    *_, said, failed, ended, _ = err.splitlines()
    assert said.endswith(
        "the run was stopped, as its output cannot be written: No space left on device."
    )
    assert failed == "a.ipynb: failed" and ended.endswith("nothing is left running")
    assert program.returncode == 1 and "Traceback" not in err
    assert registry.rows() == []


def test_all_clusters_end_though_nobody_can_be_told(terminal: Terminal, tmp_path: Path) -> None:
    """As of ``jupyter sky run train.ipynb 2> log.txt`` on a disk that is full by then."""
    full = "import os\n_ = os.dup2(os.open('/dev/full', os.O_WRONLY), 2)"
    starts = [f"%%sky --nodes 1 --cluster {name}\nprint('on')" for name in ("one", "two")]
    write_notebook(tmp_path / "a.ipynb", *starts, full)
    assert terminal.sky("run", "a.ipynb").stdout == "on\non\n"
    assert registry.rows() == []


def test_a_terminal_has_colours_unless_they_are_not_wanted(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("# %%\n1 / 0\n")
    for wanted in ("", "1"):
        screen, keyboard = pty.openpty()
        env = {**os.environ, **terminal.env, "PYTHONPATH": str(ROOT), "NO_COLOR": wanted}
        command = [sys.executable, "-m", "jupyter_sky", "run", "a.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, stdin=keyboard, stdout=keyboard, stderr=keyboard
        )
        os.close(keyboard)
        shown = os.read(screen, 65536).decode()
        os.close(screen)
        assert done.returncode == 1 and "ZeroDivisionError" in shown
        assert ("\x1b[" not in shown) == bool(wanted)


def test_an_error_advises_commands_of_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "grow.ipynb",
        "%%sky --nodes 1 --cluster kept\nx = 1",
        "%sky scale --cluster kept",
    )
    done = terminal.sky("run", "grow.ipynb")
    assert "should have, as in `jupyter sky scale 8`; it has 1 now." in done.stderr
    assert "%sky" not in done.stderr.partition("give the number")[2]


def test_notices_name_commands_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell: Any = SimpleNamespace(words=("train.py",))
    program: Any = SimpleNamespace(_path=Path("train.py"))
    monkeypatch.setattr(kernel, "get_ipython", lambda: shell)
    NoticeLine(shell, "train").update("`%sky down train` ends it")
    _Program._say(program, "gpu2 could not be reached: `%sky gc` ends what is left")
    assert capsys.readouterr().err.splitlines() == [
        "train: `jupyter sky down train` ends it",
        "train.py: gpu2 could not be reached: `jupyter sky gc` ends what is left",
    ]
