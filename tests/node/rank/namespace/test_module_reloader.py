"""Modules that were edited are reloaded, and all that was imported from them is replaced."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from jupyter_sky.node.rank.namespace.module_reloader import ModuleReloader
from tests.node.rank.namespace.modules import Rank


def test_a_function_of_a_module_is_the_new_one(rank: Rank) -> None:
    rank.write("edited", "def f(): return 'old'\nx = 'old'")
    rank.run("import edited\nfrom edited import f, f as g, x")
    rank.write("edited", "def f(): return 'new'\nx = 'new'")
    assert rank.value("[edited.f(), f(), g(), edited.x, x]") == ["new"] * 5


def test_what_was_not_edited_stays(rank: Rank) -> None:
    rank.write("kept", "import random\nx = random.random()")
    os.utime(rank.folder / "kept.py", (0, 0))  # not just now
    rank.run("import kept\nx = kept.x")
    path = rank.folder / "kept.py"
    path.write_text(path.read_text())  # the same again, later
    assert rank.value("kept.x == x")


def test_an_edit_of_the_same_size_in_the_same_second(rank: Rank) -> None:
    rank.write("quick", "x = 0")
    rank.run("import quick")
    for number in range(1, 5):
        rank.write("quick", f"x = {number}")
        assert rank.value("quick.x") == number


def test_objects_and_classes_get_the_new_code(rank: Rank) -> None:
    rank.write("things", "class A:\n  def f(self): return 'old'")
    rank.run("from things import A\na = A()\na.x = 1\nclass B(A): pass\nb = B()")
    rank.write("things", "class A:\n  def f(self): return 'new'\n  def g(self): return self.x")
    assert rank.value("[a.f(), b.f(), A().f(), a.g()]") == ["new", "new", "new", 1]
    assert rank.value("isinstance(a, A) and isinstance(b, A) and issubclass(B, A)")


def test_classes_of_a_metaclass_get_its_new_code(rank: Rank) -> None:
    source = """
        class Meta(type):
            def title(cls): return "old " + cls.__name__
        class Model(metaclass=Meta):
            def f(self): return "old"
    """
    rank.write("meta", dedent(source))
    rank.run("import meta\nclass Mine(meta.Model): pass\nmodel = meta.Model()")
    rank.write("meta", dedent(source).replace("old", "new"))
    titles = "[meta.Model.title(), type(model).title(), Mine.title()]"
    assert rank.value(titles) == ["new Model", "new Model", "new Mine"]
    assert rank.value("[model.f(), Mine().f(), isinstance(model, meta.Model)]") == [
        *("new", "new", True)
    ]


def test_members_of_an_enum_stay_the_same(rank: Rank) -> None:
    source = """
from enum import Enum, Flag, IntEnum, auto
class Mode(Enum):
    TRAIN = auto()
    EVAL = auto()
    def text(self): return self.name
class Level(IntEnum):
    LOW = 1
    HIGH = 2
class Part(Flag):
    A = 1
    B = 2
class Config:
    class Kind(Enum):
        SMALL = [1]
    def __init__(self, mode=Mode.TRAIN): self.mode = mode
names = {Mode.TRAIN: "train"}
"""
    rank.write("modes", source)
    rank.run(
        "from modes import *\nimport modes\ncfg, low, both = Config(), Level.LOW, Part.A | Part.B"
    )
    rank.run("kind = Config.Kind.SMALL")
    edited = source.replace("EVAL = auto()", "EVAL, TEST = auto(), auto()").replace(
        "HIGH = 2", "HIGH = 3"
    )
    rank.write("modes", edited.replace("self.name", "self.name.lower()").replace("[1]", "[1, 2]"))
    assert rank.value(
        "[cfg.mode is Mode.TRAIN is modes.Mode.TRAIN is Config().mode, names[cfg.mode],"
        " modes.names[cfg.mode], cfg.mode.text(), Mode(1) is cfg.mode, cfg.mode in set(Mode)]"
    ) == [True, "train", "train", "train", True, True]
    assert rank.value("[Mode.TEST.value, len(Mode), Level.HIGH.value, Level(3) is Level.HIGH]") == [
        3,
        3,
        3,
        True,
    ]
    assert rank.value("low is Level.LOW and both is (Part.A | Part.B) and Part.A in both")
    assert rank.value("[kind is Config.Kind.SMALL, kind.value, Config.Kind([1, 2]) is kind]") == [
        True,
        [1, 2],
        True,
    ]


def test_modules_that_use_an_edited_one(rank: Rank) -> None:
    rank.write("base", "rate = 1\ndef f(): return 1\nclass A: kind = 1")
    rank.write("user", "import base\nfrom base import rate, f, A\nclass B(A): pass\nloaded = []")
    rank.run("import user\nuser.loaded.append('kept')")
    rank.write("base", "rate = 2\ndef f(): return 2\nclass A: kind = 2")
    assert rank.value("[user.rate, user.f(), user.base.f(), user.A.kind, user.B.kind]") == [2] * 5
    assert rank.value("user.loaded") == ["kept"]


def test_edited_modules_are_loaded_in_the_order_of_their_use(rank: Rank) -> None:
    rank.write("inner", "x = 1")
    rank.write("outer", "from inner import x\ny = x + 1")
    rank.run("import inner, outer")
    rank.write("outer", "from inner import x\ny = x * 100")
    rank.write("inner", "x = 5")
    assert rank.value("outer.y") == 500


def test_modules_that_use_each_other(rank: Rank) -> None:
    rank.write("left", "import right\ndef f(): return right.g()")
    rank.write("right", "import left\ndef g(): return 1")
    rank.run("import left")
    rank.write("left", "import right\ndef f(): return -right.g()")
    rank.write("right", "import left\ndef g(): return 2")
    assert rank.value("left.f()") == -2


def test_a_package(rank: Rank) -> None:
    rank.write("pack/__init__", "from pack.part import f")
    rank.write("pack/part", "def f(): return 1")
    rank.run("from pack import f\nimport pack.part")
    rank.write("pack/part", "def f(): return 2\ndef g(): return 3")
    assert rank.value("[f(), pack.f(), pack.part.g()]") == [2, 2, 3]


def test_submodules_of_an_edited_package_stay(rank: Rank) -> None:
    rank.write("group/__init__", "x = 1")
    rank.write("group/part", "def f(): return 3")
    rank.run("import group.part")
    rank.write("group/__init__", "import group.part\nx = 2\ny = group.part.f()")
    assert rank.value("[group.x, group.y, group.part.f()]") == [2, 3, 3]
    rank.write("group/__init__", "def part(): return 4")
    assert rank.value("group.part()") == 4


def test_a_compiled_module_that_is_built_again_is_told_once(
    rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    [built] = Path(psutil.__file__).parent.glob("_psutil_linux.*")
    path = rank.folder / built.name
    path.write_bytes(built.read_bytes())
    rank.run("import _psutil_linux")
    rank.run("pass")
    assert not capsys.readouterr().err
    path.unlink()  # as a linker does
    path.write_bytes(built.read_bytes() + b"another version")
    rank.run("pass")
    rank.run("pass")
    assert capsys.readouterr().err == (
        "_psutil_linux was built again, and Python loads compiled modules once: "
        "`%sky restart` loads this one.\n"
    )


def test_an_edit_while_a_cell_runs_is_seen_by_the_next(rank: Rank) -> None:
    rank.write("during", "x = 1")
    rank.names["write"] = rank.write
    rank.run("import during\nwrite('during', 'x = 2')")
    assert rank.names["during"].x == 1
    assert rank.value("during.x") == 2


def test_a_file_that_is_new_beside_others_is_found(rank: Rank) -> None:
    rank.write("one", "")
    rank.run("import one")
    rank.write("two", "x = 2")
    assert rank.value("__import__('two').x") == 2


def test_a_module_that_is_gone_is_let_go_of(rank: Rank) -> None:
    rank.write("gone", "x = 1")
    rank.run("import gone")
    (rank.folder / "gone.py").unlink()
    assert rank.value("gone.x") == 1
    rank.run("import sys\ndel sys.modules['gone']")
    rank.write("gone", "x = 2")
    rank.run("import gone")
    rank.write("gone", "x = 3")
    assert rank.value("gone.x") == 3


def test_names_that_are_alike_by_chance_are_left_alone(rank: Rank) -> None:
    rank.write("settings", "rate = 3\ndef f(): pass")
    rank.run("import settings\nother = 3")
    rank.write("settings", "rate = 4\ndef f(): pass")
    assert rank.value("other") == 3


def test_libraries_are_not_looked_at() -> None:
    modules = ModuleReloader()
    importlib.import_module("numpy")
    modules.record_imports(since=0)
    assert not [name for name in modules._sources if name.startswith(("numpy", "json"))]


def test_what_is_in_no_package_is_left_alone(rank: Rank) -> None:
    """`torch.compile` writes files, and loads them as modules within one that is no package."""
    rank.write("compiler", "")
    rank.run(
        "import compiler, sys, types, pathlib\n"
        "file = pathlib.Path(compiler.__file__).with_name('made.py')\n"
        "file.write_text('x = 1')\n"
        "made = sys.modules['compiler.made'] = types.ModuleType('compiler.made')\n"
        "made.__file__ = str(file)\n"
    )
    rank.write("made", "x = 2")
    assert rank.value("sys.modules['compiler.made'] is made") is True


def test_a_module_that_was_loaded_from_a_file_is_left_alone(rank: Rank) -> None:
    rank.write("sub/loaded", "x = 1")
    rank.run(
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('loaded', {str(rank.folder)!r} + "
        "'/sub/loaded.py')\n"
        "sys.modules['loaded'] = loaded = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(loaded)"
    )
    rank.write("sub/loaded", "x = 2")
    assert rank.value("loaded.x") == 1
