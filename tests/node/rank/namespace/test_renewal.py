"""What holds on to functions, classes and objects from before an edit runs the new code."""

from __future__ import annotations

import weakref
from textwrap import dedent

import pytest

from tests.node.rank.namespace.modules import Rank


def test_a_method_that_calls_super_for_the_first_time(rank: Rank) -> None:
    source = """
        class Base:
            def f(self): return 1
        class Net(Base):
            def f(self): return 1
        def g(): return 1
    """
    rank.write("derived", dedent(source))
    rank.run("from derived import Net, g\nnet = Net()")
    edited = source.replace("return 1\n        def g", "return super().f() + 1\n        def g")
    rank.write("derived", dedent(edited).replace("g(): return 1", "g(): return 2"))
    assert rank.value("[net.f(), Net().f(), g()]") == [2, 2, 2]


def test_super_of_classes_that_are_held_on_to(rank: Rank) -> None:
    source = """
        class Base:
            def f(self): return 1
            def is_trained(self): return True
        class Net(Base):
            def f(self): return 0
            @property
            def is_ready(self): return False
            @classmethod
            def made(cls): return cls()
    """
    rank.write("registered", dedent(source))
    rank.run("from registered import Net\nmodels = {'net': Net}")
    edited = source.replace("return 0", "return super().f() + 1")
    edited = edited.replace("return False", "return super().is_trained()")
    rank.write("registered", dedent(edited))
    assert rank.value("[models['net']().f(), models['net'].made().is_ready]") == [2, True]


@pytest.mark.parametrize("decorator", ["", "@loud", "@property", "@classmethod"])
def test_super_of_what_is_held_of_objects_and_classes(rank: Rank, decorator: str) -> None:
    source = f"""
        import functools
        def loud(f):
            @functools.wraps(f)
            def call(*args): return f(*args) + call.mark
            call.mark = "!"
            return call
        class Base:
            name = "base"
            def f(self): return self.name
            @property
            def p(self): return self.name
        class Net(Base):
            {decorator}
            def g(self): return super().name + " before"
            def f(self): return super().f() + " before"
    """
    rank.write("held_parts", dedent(source))
    asked = "Net().g" if decorator == "@property" else "Net().g()"
    rank.run("from held_parts import Net\nnet = Net()\nmodels = {'net': Net}")
    rank.run("bound, plain = net.f, Net.f\nclass Sub(Net): pass\nsub = Sub()\nof_sub = sub.f")
    rank.write("held_parts", dedent(source).replace("before", "after"))
    marks = "!" * (decorator == "@loud")
    assert rank.value("[bound(), plain(net), plain(Net()), of_sub()]") == ["base after"] * 4
    assert rank.value("[net.f(), models['net']().f(), Sub().f()]") == ["base after"] * 3
    again = [asked, asked.replace("Net()", "models['net']()"), asked.replace("Net()", "sub")]
    assert rank.value(f"[{', '.join(again)}]") == [f"base after{marks}"] * 3


def test_types_of_arguments(rank: Rank) -> None:
    rank.write("annotated", "def f(a: int): return a")
    rank.run("from annotated import f\nheld = [f]")
    rank.write("annotated", "def f(a: str): return a")
    assert rank.value("held[0].__annotations__['a'].__name__") == "str"


def test_a_function_that_gets_a_decorator(rank: Rank) -> None:
    source = "def twice(f):\n  return lambda: 2 * f()\n{}def f(): return 1\ndef g(): return {}"
    rank.write("decorated", source.format("", 1))
    rank.run("from decorated import f, g")
    rank.write("decorated", source.format("@twice\n", 2))
    assert rank.value("[f(), g()]") == [2, 2]


def test_a_function_in_a_decorator_and_its_arguments(rank: Rank) -> None:
    source = """
        import functools
        def passed_on(f):
            @functools.wraps(f)
            def wrapper(**options): return f(**options)
            return wrapper
        @passed_on
        def f(*, rate=1): return "old", rate
    """
    rank.write("wrapped", dedent(source))
    rank.run("from wrapped import f\nheld = [f]")
    rank.write("wrapped", dedent(source).replace("old", "new").replace("=1", "=2"))
    assert rank.value("held[0]()") == ("new", 2)


def test_a_class_that_holds_what_cannot_be_compared(rank: Rank) -> None:
    source = """
        class Weights:  # as tensors of other sizes
            def __eq__(self, other): raise RuntimeError
        class Net: weights, size = Weights(), 1
        def g(): return 1
    """
    rank.write("weights", dedent(source))
    rank.run("from weights import Net, g\nheld, net = [Net], Net()")
    rank.write("weights", dedent(source).replace("1", "2"))
    assert rank.value("[net.size, held[0].size, g()]") == [2, 2, 2]


def test_a_class_that_is_held_gets_new_methods_of_all_kinds(rank: Rank) -> None:
    source = "class Net:\n  @staticmethod\n  def f(): return 'old'\n  def gone(self): pass"
    rank.write("kinds", source)
    rank.run("from kinds import Net\nkinds, f = {'net': Net}, Net.f")
    added = "\n  @staticmethod\n  def g(x): return x\n  @classmethod\n  def h(cls): return cls"
    rank.write("kinds", source.replace("old", "new").replace("gone", "come") + added)
    assert rank.value("[f(), kinds['net']().g(3), kinds['net'].h() is kinds['net']]") == [
        *("new", 3, True)
    ]
    assert rank.value("[hasattr(kinds['net'], name) for name in ('gone', 'come')]") == [False, True]


def test_a_name_that_stands_for_another_class_or_function(rank: Rank) -> None:
    source = """
        class Small: size = 1
        class Large: size = 2
        def relu(): return 1
        def gelu(): return 2
        Model, act = Small, relu
    """
    rank.write("named", dedent(source))
    rank.run("from named import *\nsmall, held = Small(), [relu]")
    rank.write("named", dedent(source).replace("= Small, relu", "= Large, gelu"))
    assert rank.value("[small.size, Small.size, Model.size]") == [1, 1, 2]
    assert rank.value("[held[0](), relu(), act()]") == [1, 1, 2]


@pytest.mark.parametrize("indented", ["", "  "])
def test_objects_with_slots_keep_what_they_hold(rank: Rank, indented: str) -> None:
    outer = "class Outer:\n" if indented else ""
    source = "class Config:\n  __slots__ = ('rate',)\n  def f(self): return f'old {self.rate}'\n"
    source = outer + "".join(indented + line for line in source.splitlines(keepends=True))
    source += "def load(): return 'old'\n"
    name = "Outer.Config" if indented else "Config"
    rank.write("slotted", source)
    rank.run(f"import copy\nfrom slotted import *\nearlier = {name}()\nearlier.rate = 1")
    rank.write("slotted", source.replace("old", "new").replace(",)", ", 'step')"))
    rank.run(f"later = {name}()\nlater.rate, later.step = 2, 3")
    assert rank.value("[earlier.f(), later.f(), load()]") == ["new 1", "new 2", "new"]
    assert rank.value("[copy.copy(earlier).rate, hasattr(earlier, 'step')]") == [1, False]


def test_names_beside_objects_that_answer_nothing(rank: Rank) -> None:
    class Unbound:
        @property
        def __class__(self) -> type:
            raise RuntimeError("working outside of a context")

    rank.names.update(first=Unbound(), gone=weakref.proxy(Unbound()))
    source = """
        x = 1
        def f(): return 1
        class Net:
            @property
            def __class__(self): raise RuntimeError("working outside of a context")
            def f(self): return 1
        net = Net()
    """
    rank.write("beside", dedent(source))
    rank.run("from beside import f\nimport beside\nheld = beside.net")
    rank.write("beside", dedent(source).replace("1", "2"))
    assert rank.value("[beside.x, f(), held.f()]") == [2, 2, 2]


def test_an_edit_that_fails_leaves_all_as_it_was(rank: Rank) -> None:
    source = """
        from enum import Enum
        class Mode(Enum):
            TRAIN = [1]
        def f(): return x
        x = 1
    """
    rank.write("half", dedent(source))
    rank.run("import half\nmode, f = half.Mode.TRAIN, half.f")
    for last in ("raise SystemExit(2)", "raise KeyboardInterrupt", "1 / 0"):
        rank.write("half", dedent(source).replace("1", "2") + f"y = 1\n{last}")
        with pytest.raises((ImportError, KeyboardInterrupt, ZeroDivisionError)):
            rank.run("half")
        names = rank.names
        assert (names["f"](), names["half"].x, hasattr(names["half"], "y")) == (1, 1, False)
        assert isinstance(names["mode"], names["half"].Mode)
        assert names["mode"].value == [1]


def test_several_edits_of_what_is_held(rank: Rank) -> None:
    source = """
        class Base:
            def f(self): return "base"
        class Net(Base):
            def f(self): return super().f() + " 0"
            def g(self): return "0"
        def f(): return "0"
    """
    rank.write("edited_often", dedent(source))
    rank.run("from edited_often import Net, f\nnet, functions, models = Net(), [f], {'net': Net}")
    rank.run("bound = net.f")
    for last in ("1", "2", "3"):
        rank.write("edited_often", dedent(source).replace("0", last))
        assert rank.value("[functions[0](), models['net']().g()]") == [last] * 2
        assert rank.value("[bound(), net.f(), models['net']().f()]") == [f"base {last}"] * 3


def test_what_is_gone_for_a_while(rank: Rank) -> None:
    source = """
        class Net:
            def f(self): return "before"
        def f(): return "before"
    """
    rank.write("half_saved", dedent(source))
    rank.run("import half_saved\nfrom half_saved import Net, f\nnet, functions = Net(), [f]")
    for _ in range(2):
        rank.write("half_saved", "# An editor empties a file before it writes it.\n")
        assert rank.value("net.f()") == "before"
        rank.run("pass")
    rank.write("half_saved", dedent(source).replace("before", "after"))
    assert rank.value("[net.f(), Net().f(), f(), functions[0]()]") == ["after"] * 4
    assert rank.value("[type(net) is Net is half_saved.Net, f is half_saved.f]") == [True, True]


def test_a_class_that_is_in_another_module_now(rank: Rank) -> None:
    source = """
        version = "{0}"
        class Net:
            def f(self): return "{0}", version
    """
    rank.write("moved_from", dedent(source).format("before"))
    rank.run("from moved_from import Net\nnet = Net()")
    rank.write("moved_to", dedent(source).format("after"))
    rank.write("moved_from", "from moved_to import Net\nversion = 'before'")
    assert rank.value("[net.f(), Net().f()]") == [("after", "after")] * 2
    assert rank.value("type(net) is Net")
