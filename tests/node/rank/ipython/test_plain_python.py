"""Cells that are not given to IPython to transform are those that it would leave as they are."""

from __future__ import annotations

import atexit
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_sky.node.rank.ipython import plain_python
from tests.paths import ROOT

CELLS = [
    "pass",
    "pass\n",
    "import os",
    "ls",
    "exit",
    "x = 1\ny = 2",
    "for i in range(3):\n    print(i)\n",
    "print(1)\n\n\nprint(2)\n",
    "a\n  \nb",
    "x = '''\n  \n/a\n'''\nx",
    "x = '''a\n  b\n'''\nx",
    "\nx\ny",
    "  x\n  y",
    "\tx",
    ">>> x\n>>> y",
    "In [1]: x\nIn [2]: y",
    "In [1]: x\n   ...: y",
    "/f x\ny",
    ", f a b\ny",
    "; f a b\ny",
    "%time x\ny",
    "!ls\ny",
    "y = !ls\nx",
    "x?\ny",
    "?x\ny",
    "%%time\nx",
    "a != b\nc % d",
    "if step % 10 == 0 and a != b:\n    print('%d?' % step, f'{a!r}')\n",
    "y =!ls\nx",
    "y = 1\u2028;f x\nx",
    "y = %time x\nx",
    "y = \\\n  %time x\nx",
    "y = (a\n  % b)\nx",
    "y = x ; !ls\nx",
    "x??\ny",
    "x.y[0]? \ny",
    "x? # why\ny",
    "print('why?')\ny = 1  # why?",
    "@decorated\nclass A:\n    pass",
    "x\r\ny\r\n",
    "x\fy\nz",
    "# nothing",
    "# nothing\npass",
    "f x",
    "lambda: 0",
    "y = 1",
    "y == 1",
    "print(1)",
    "losses.append(loss)",
    "time(1)",
    "time = 1",
    "exit()",
    "exit = 1",
    "x (1)",
    "",
    "\n",
]


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config)
    plain_python.remember_checkers(shell)
    yield shell
    atexit.unregister(shell.atexit_operations)


def test_what_is_left_as_it_is_ipython_leaves_too(shell: InteractiveShell) -> None:
    files = [path.read_text() for path in (ROOT / "jupyter_sky" / "node").rglob("*.py")]
    left = {
        cell: found
        for cell in [*CELLS, *files]
        if (found := plain_python.as_it_is(shell, cell)) is not None
    }
    assert {cell: shell.transform_cell(cell) for cell in left} == left
    assert {"pass", "import os", "x = 1\ny = 2", "y = 1", "print(1)"} <= left.keys()
    assert "a != b\nc % d" in {cell.rstrip("\n") for cell in left}
    assert len(left) > len(files) * 3 // 4


PIECES = ["x", "y", "=", "==", "%", "%time", "!", "!=", "?", "??", "'%d?'", "(", ")", "[0]", ".a"]
PIECES += [
    "f'{x!r}'",
    "+=",
    "# why?",
    ";",
    ",",
    "/",
    ">",
    "\\\n",
    "\n",
    "\n\n",
    "\n    ",
    " ",
    "if x:",
]


LINES = [
    "x",
    "time",
    "ls",
    "exit",
    "print",
    ".a",
    "(",
    ")",
    "=",
    "==",
    " ",
    "1",
    "[0]",
    ",",
    "'a b'",
]
LINES += ["!=", "%", "?", "+=", ";", "#", "not", "\n"]


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=7).map("".join))
def test_a_single_line_that_is_left_ipython_would_leave(shell: InteractiveShell, cell: str) -> None:
    found = plain_python.as_it_is(shell, cell)
    assert found is None or found == shell.transform_cell(cell)


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=10).map("".join))
def test_whatever_is_left_ipython_would_leave(shell: InteractiveShell, cell: str) -> None:
    cell = f"{cell}\ny = 1"
    found = plain_python.as_it_is(shell, cell)
    assert found is None or found == shell.transform_cell(cell)


@pytest.mark.parametrize(
    "cell",
    ["ls", "exit", "exit = 1", "time(1)", "%time x\ny", "!ls\ny", "x?\ny", "  x\n  y", "f x"],
)
def test_ipython_looks_where_there_may_be_something(shell: InteractiveShell, cell: str) -> None:
    assert plain_python.as_it_is(shell, cell) is None


def test_what_the_user_has_added_is_asked(shell: InteractiveShell) -> None:
    cell = "x = 1\ny = 2"
    assert plain_python.as_it_is(shell, cell)
    shell.input_transformers_post.append(lambda lines: lines)
    assert plain_python.as_it_is(shell, cell) is None
    shell.input_transformers_post.clear()
    shell.input_transformer_manager.cleanup_transforms.append(lambda lines: lines)
    assert plain_python.as_it_is(shell, cell) is None
