"""Cells that are not given to IPython to transform are those that it would leave as they are."""

from __future__ import annotations

import atexit
from collections.abc import Iterator

import pytest
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
    "@decorated\nclass A:\n    pass",
    "x\r\ny\r\n",
    "x\fy\nz",
    "# nothing",
    "# nothing\npass",
    "f x",
    "lambda: 0",
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
    assert {"pass", "import os", "x = 1\ny = 2"} <= left.keys()
    assert len(left) > len(files) // 4


@pytest.mark.parametrize("cell", ["ls", "exit", "%time x\ny", "!ls\ny", "x?\ny", "  x\n  y", "f x"])
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
