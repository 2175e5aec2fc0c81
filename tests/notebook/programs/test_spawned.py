"""Processes that ranks start with the start methods of `multiprocessing` that do not fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import registry
from tests.notebook.programs.conftest import Terminal

SCRIPT = """\
import dataclasses
import multiprocessing
import sys
import threading
from beside import double

SCALE, MISSING, LOCK = 3, object(), threading.Lock()

@dataclasses.dataclass
class Item:
    value: int

def scaled(item, other=MISSING):
    assert other is MISSING
    return Item(helper(item.value))

def helper(value):
    return SCALE * value

def locked(value):
    with LOCK:
        return value

def with_lock():
    lock = threading.Lock()
    def hold(value):
        with lock:
            return value
    return hold

hold = with_lock()

def holding(value):
    return hold(value)

def tried(pool, function, value):
    try:
        return pool.map(function, [value])
    except Exception as error:
        return f"{type(error).__name__}: {error}"

if __name__ == "__main__":
    print(__file__.endswith("a.py"), "beside" in sys.modules)
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(double, [1, 2]))
        print(pool.map(scaled, [Item(1), Item(2)]))
        print(tried(pool, locked, 1))
        print(tried(pool, holding, 1))
        class Later:
            value = 5
        def later(value):
            return value
        if sys.argv[1] == "spawn":
            print(tried(pool, later, 1))
            print(tried(pool, scaled, Later()))
            print(pool.map(helper, [2]))
"""

ABSENT = (
    "RuntimeError: {} is not in the processes that this rank has started, as it came after them or "
    "cannot be sent there: define it before them, or import it from a module."
)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_they_find_the_functions_and_classes_of_the_script(
    terminal: Terminal, tmp_path: Path, method: str
) -> None:
    (tmp_path / "beside.py").write_text("def double(value): return 2 * value")
    (tmp_path / "a.py").write_text(SCRIPT)
    done = terminal.sky("run", "a.py", "--nodes", "1", "--", method)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["True True", "[2, 4]", "[Item(value=3), Item(value=6)]"]
    assert lines[3] == ABSENT.format("LOCK")
    assert lines[4] == ABSENT.format("hold")
    if method == "spawn":
        assert lines[5:] == [ABSENT.format("later"), ABSENT.format("Later"), "[6]"]
    assert registry.rows() == []


def test_they_find_those_of_a_notebook_and_start_others(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        """# %%
import multiprocessing
import jupyter_sky as sky
spawn = multiprocessing.get_context("spawn")
def base(value):
    sky.log(value=value)
    return value + 1
def put(queue, value): queue.put(base(value))
def further(queue, value):
    child = spawn.Process(target=put, args=(queue, value))
    child.start()
    child.join()
# %%
%%sky --nodes 1
queue = spawn.Queue()
further, put
child = spawn.Process(target=further, args=(queue, 6))
child.start()
child.join()
print(queue.get())
"""
    )
    done = terminal.sky("run", "a.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "7"
    assert done.stderr.count("sky.log: what processes log that a rank has started") == 1


def test_they_end_without_a_word_where_they_have_not_begun(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(
        """# %%
%%sky --nodes 1
import multiprocessing, os, signal
child = multiprocessing.get_context("spawn").Process(target=print, args=("begun",))
child.start()
os.kill(child.pid, signal.SIGINT)
child.join()
print(child.exitcode)
"""
    )
    done = terminal.sky("run", "a.py")
    assert done.stdout.splitlines()[-1] == "0"
    assert "begun" not in done.stdout and "KeyboardInterrupt" not in done.stderr
