"""An edit that cannot be loaded is an error of the cells that may run code of its module."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable

import pytest

from tests.node.rank.namespace.modules import Rank


@pytest.mark.parametrize(
    "cell",
    [
        "importlib.import_module('kit.net')",
        "importlib.import_module(name)",
        "from importlib import import_module as load\nload('kit.net')",
        "__import__('kit.net')",
        "find()",
        "kit.loading.find()",
    ],
)
def test_a_cell_that_imports_the_module_of_an_edit_that_fails_by_its_name(
    rank: Rank, cell: str
) -> None:
    rank.write("kit/__init__", "")
    rank.write("kit/net", "x = 1")
    loading = (
        "from importlib import import_module\ndef find(): return import_module('{}net', 'kit')"
    )
    rank.write("kit/loading", loading.format("."))
    rank.run("import importlib, kit.loading, kit.net\nname = 'kit.net'")
    rank.run(loading.format("kit."))
    rank.write("kit/net", "x = (")
    assert rank.value("name + 'kit.net'") == "kit.netkit.net"
    with pytest.raises(SyntaxError):
        rank.run(cell)


def test_an_edit_that_does_not_compile_is_said_and_tried_again(rank: Rank) -> None:
    rank.write("broken", "x = 1")
    rank.run("import broken")
    rank.write("broken", "x = (")
    for _ in range(2):
        with pytest.raises(SyntaxError):
            rank.run("broken")
    assert rank.names["broken"].x == 1
    rank.write("broken", "x = 2")
    assert rank.value("broken.x") == 2


def test_a_cell_that_needs_no_module_of_an_edit_that_fails_is_told(
    rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.write("net", "class Net:\n  def f(self): return 1\nclass Error(Exception): pass")
    rank.write("kit/__init__", "")
    rank.write("kit/train", "def train():\n  from .model import Model\n  return Model().f()")
    rank.write("kit/model", "import net\nclass Model(net.Net): pass")
    rank.write("other", "def double(x): return 2 * x")
    rank.run(
        "import functools, other\nfrom other import double\nimport kit.train as training\n"
        "from kit.train import train\nfrom net import Net, Error\n"
        "class Sub(Net): pass\n"
        "def helper(): return Net()\ndef use(): return helper()\ndef alone(): return 1\n"
        "nets = {'a': [Net()]}\npart = functools.partial(sorted, key=Net)\ntrain()"
    )
    rank.write("net", "class Net(")
    for cell in (
        "import net",
        "from net import Net as N",
        "def f():\n  import net",
        "nets",
        "part([])",
        "use()",
        "lambda: helper()",
        "Sub",
        "train()",
        "from kit import train",
        "training.train()",
    ):
        with pytest.raises(SyntaxError):
            rank.run(cell)
    assert not capsys.readouterr().err
    assert rank.value("alone() + double(3) + len(other.double('x'))") == 9
    assert capsys.readouterr().err == (
        "net was edited and cannot be loaded, so it stays as it was: "
        "SyntaxError: '(' was never closed (net.py, line 1)\n"
    )


def test_a_cell_that_needs_a_module_of_an_edit_that_fails_by_a_package_or_a_library(
    rank: Rank,
) -> None:
    rank.write("outer/__init__", "x = 1")
    rank.write("outer/inner", "y = 1")
    rank.write("base", "class Base: pass\ndef f(): pass")
    rank.names.update(within=_within, kind_of=_kind_of)
    rank.run(
        "import base, outer.inner\n"
        "kept, made = within(base.f), kind_of(base.Base)()\n@within\ndef mine(): base.f()"
    )
    rank.write("outer/__init__", "x = (")
    for cell in ("import outer.inner\nouter.x", "from outer.inner import y"):
        with pytest.raises(SyntaxError):
            rank.run(cell)
    rank.write("outer/__init__", "x = 2")
    rank.write("base", "def f(): (")
    for cell in ("kept()", "mine()", "made"):
        with pytest.raises(SyntaxError):
            rank.run(cell)


def _within(function: Callable[[], object]) -> Callable[[], object]:
    """Return what a decorator of a library makes of a function."""

    def wrapper() -> object:
        return function()

    return wrapper


def _kind_of(kind: type) -> type:
    """Return a class of a library, as of a part of a model that is sharded."""
    return type("Sharded", (kind,), {"__module__": __name__})


def test_a_module_that_ends_its_program_is_an_error_of_the_cells_that_need_it(
    rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.write("program", "x = 1")
    rank.run("import program")
    rank.write("program", "raise SystemExit('no data')")
    assert rank.value("1") == 1
    why = (
        "program ends its program when it is imported, by sys.exit('no data'): put what does so "
        "below `if __name__ == '__main__':`."
    )
    assert capsys.readouterr().err == (
        f"program was edited and cannot be loaded, so it stays as it was: ImportError: {why}\n"
    )
    with pytest.raises(ImportError, match=re.escape(why)):
        rank.run("program.x")


def test_a_cell_with_objects_that_answer_nothing_runs_while_an_edit_fails(rank: Rank) -> None:
    class Unbound:
        @property
        def __class__(self) -> type:
            raise RuntimeError("working outside of a context")

    rank.write("aside", "x = 1")
    rank.names.update(objects=[weakref.proxy(Unbound()), Unbound()])
    rank.run("import aside")
    rank.write("aside", "x = (")
    assert rank.value("len(objects)") == 2


def test_modules_wait_for_one_that_they_use_and_that_fails(rank: Rank) -> None:
    rank.write("first", "x = 1")
    rank.write("second", "import first\ny = first.x")
    rank.write("apart", "z = 1")
    rank.run("import first, second, apart")
    rank.write("first", "x = ")
    rank.write("second", "import first\ny = first.x * 100")
    rank.write("apart", "z = 2")
    assert rank.value("apart.z") == 2
    with pytest.raises(SyntaxError):
        rank.run("second")
    rank.write("first", "x = 5")
    assert rank.value("second.y") == 500
