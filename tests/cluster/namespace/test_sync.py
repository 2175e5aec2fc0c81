"""The names of the notebook and those of the ranks: the last assignment wins, on either side."""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import warnings
from contextlib import closing
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.runs.handle import RunHandle
from tests.cluster.namespace.notebook import Notebook, open_notebook


@pytest.fixture
def notebook(shared, monkeypatch) -> Notebook:
    return open_notebook(shared.cluster, monkeypatch)


# AssignmentTracker


def test_what_a_rank_does_stays_until_the_notebook_assigns(notebook) -> None:
    notebook.here("x = 0")
    notebook.there("x += rank")
    notebook.there("x += rank")
    assert notebook.ask("x") == [0, 2, 4, 6]
    notebook.here("x = 0")
    assert notebook.ask("x") == [0] * 4


def test_what_an_object_is_made_with_is_there_before_the_object(notebook) -> None:
    """To load it may run its class's own code, which uses names of the notebook."""
    notebook.here(
        "import re\nPATTERN = 'a+'\ndef compiled(): return re.compile(PATTERN)\nclass Words:\n"
        "  def __init__(self, text): self.text, self.found = text, compiled().findall(text)\n"
        "  def __reduce__(self): return Words, (self.text,)\n"
        "  def again(self): return a is self\na = Words('caat')"
    )
    assert notebook.ask("a.found, a.again()") == [(["aa"], True)] * 4


def test_a_name_that_a_rank_bound_later_is_the_ranks(notebook) -> None:
    notebook.here("loss = 'old'")
    notebook.there("loss = rank")
    assert notebook.ask("loss") == [0, 1, 2, 3]
    notebook.here("loss = 'new'")
    assert notebook.ask("loss") == ["new"] * 4


@pytest.mark.parametrize(
    "bind", ["from keyword import *", "exec('kwlist = 1')", "vars().update(kwlist=2)"]
)
def test_a_name_that_a_rank_bound_in_some_other_way(notebook, bind) -> None:
    notebook.here("kwlist = 0")
    notebook.there(bind)
    assert notebook.ask("kwlist") != [0] * 4
    notebook.here(bind)
    notebook.here("kwlist = 0")
    assert notebook.ask("kwlist") == [0] * 4


def test_a_branch_that_was_not_taken_bound_nothing(notebook) -> None:
    notebook.here("x = 1")
    notebook.there("x")
    notebook.here("x = 2")
    notebook.there("if rank > 1: x = 3")
    assert notebook.ask("x") == [2, 2, 3, 3]


def test_a_cell_that_fails_bound_what_it_came_to(notebook) -> None:
    notebook.here("x = y = 1")
    notebook.there("x, y")
    notebook.here("x = y = 2")
    with pytest.raises(ZeroDivisionError):
        notebook.there("x = 3\n1 / 0\ny = 3")
    assert notebook.ask("(x, y)") == [(3, 2)] * 4


def test_the_same_number_again_is_an_assignment_on_either_side(notebook) -> None:
    notebook.here("x = 1")
    notebook.there("x")
    notebook.here("x = 2")
    notebook.there("x = 1")
    assert notebook.ask("x") == [1] * 4


def test_what_is_assigned_twice_is_assigned_even_where_the_former_value_was(notebook) -> None:
    notebook.here("lr = float('0.1')")
    notebook.there("lr = lr / 2")
    notebook.here("lr *= 2\nlr *= 5")
    assert notebook.ask("lr") == [1.0] * 4


def test_what_arrived_before_something_that_did_not_is_still_the_notebooks(notebook) -> None:
    notebook.here(
        "class Refused:\n"
        "    def __reduce__(self): return int, ('none',)\n"
        "box, other = {'a': 1}, Refused()"
    )
    with pytest.raises(ValueError, match="none"):
        notebook.there("box, other")
    notebook.here("del other; exec('box[\"a\"] = 2')")
    assert notebook.ask("box['a']") == [2] * 4


def test_what_could_not_be_loaded_is_not_sent_to_cells_that_do_not_need_it(notebook) -> None:
    notebook.here(
        "class Loader:\n"
        "    def __init__(self): self.data = bytearray(200_000)\n"
        "    def __setstate__(self, state): raise FileNotFoundError('/nodata')\n"
        "loader = Loader()\ndata = loader.data"
    )
    notebook.there("loss = 1.0")
    with pytest.raises(FileNotFoundError, match="nodata"):
        notebook.there("loader.data")
    notebook.here("loss = 2.0")
    assert notebook.sent("loss") == {"loss"}
    assert notebook.ask("loss") == [2.0] * 4
    with pytest.raises(FileNotFoundError, match="nodata"):
        notebook.there("loader.data")
    assert notebook.ask("len(data)") == [200_000] * 4


def test_the_error_of_what_cannot_be_loaded_shows_the_users_lines_alone(notebook) -> None:
    notebook.here(
        "class Broken:\n"
        "    def __init__(self): self.x = 1\n"
        "    def __setstate__(self, state): raise ValueError('broken')\n"
        "broken = Broken()"
    )
    with pytest.raises(ValueError, match="broken") as raised:
        notebook.there("broken")
    assert "__setstate__" in raised.value.remote_traceback
    assert "while receiving broken" in raised.value.remote_traceback
    assert "contextlib" not in raised.value.remote_traceback
    assert "jupyter_sky" not in raised.value.remote_traceback


def test_a_name_that_is_deleted_on_a_rank_is_gone_there(notebook) -> None:
    notebook.here("x = 1")
    notebook.there("x\ndel x")
    with pytest.raises(NameError):
        notebook.ask("x")
    notebook.here("x = 1")
    assert notebook.ask("x") == [1] * 4


def test_a_name_that_is_deleted_in_the_notebook_is_gone_on_ranks(notebook) -> None:
    notebook.here("list, own, x = 1, 2, [3]")
    notebook.there("own = list + own\nx")
    notebook.here("own = x; del list, own, x")
    assert notebook.ask("list((1,)), 'own' in globals(), 'x' in globals()") == (
        [([1], False, False)] * 4
    )
    notebook.there("x = 4")
    assert notebook.ask("x") == [4] * 4
    notebook.here("x = 5; del x; x = 6")
    assert notebook.ask("x") == [6] * 4


def test_what_is_changed_in_place_is_sent_again(notebook) -> None:
    notebook.here("numbers = [1]")
    notebook.there("numbers.append(rank)")
    assert notebook.ask("numbers") == [[1, rank] for rank in range(4)]
    notebook.here("numbers.append(5)")  # after what each rank has appended
    assert notebook.ask("numbers") == [[1, rank, 5] for rank in range(4)]
    notebook.here("numbers.clear()")
    assert notebook.ask("numbers") == [[]] * 4


def test_what_is_not_needed_is_not_sent(notebook) -> None:
    notebook.here("x = 1\ny = 2\ndef f(): return x")
    assert notebook.sent("f()") == {"f", "x"}
    notebook.there("f()")
    assert notebook.sent("f()") == set()


def test_a_rank_does_not_pickle_what_it_receives(notebook) -> None:
    notebook.here(
        "class Seen:\n"
        "    def __getstate__(self):\n"
        "        import sys\n"
        "        sys.pickled = vars(sys).get('pickled', 0) + 1\n"
        "        return {}\n"
        "value = Seen()"
    )
    notebook.there("import sys")
    assert notebook.ask("(bool(value), hasattr(sys, 'pickled'))") == [(True, False)] * 4


def test_what_a_cell_does_not_need_is_not_pickled_for_it(notebook, monkeypatch) -> None:
    monkeypatch.setattr(sys, "pickled", [], raising=False)
    notebook.here(
        "class Seen:\n"
        "    def __getstate__(self):\n"
        "        import sys\n"
        "        getattr(sys, 'pickled', []).append(self)\n"
        "        return {}\n"
        "other, part = Seen(), {'n': 0}\n"
        "whole = {'part': part}"
    )
    notebook.there("other, part, whole")
    sys.pickled.clear()
    notebook.here("part['n'] = 1")
    assert notebook.ask("(part['n'], whole['part'] is part)") == [(1, True)] * 4
    assert not sys.pickled


def test_a_run_that_waits_counts_for_the_next(notebook) -> None:
    notebook.here("x = 'old'")
    first = notebook.start("import time\nx = rank\ndist.barrier()")
    second = notebook.start("y = x", gather=["y"])
    first.follow()
    second.follow()
    assert [values["y"] for _, values in sorted(second.values().items())] == [0, 1, 2, 3]


def values_of(run: RunHandle) -> list[dict[str, Any]]:
    """Return what a run gives, by rank, once it is over."""
    run.follow()
    return [values for _, values in sorted(run.values().items())]


def test_what_a_run_binds_in_a_loop_or_a_branch_counts_for_the_next(notebook, held_up) -> None:
    notebook.here("epoch, loss, seen, best = 0, 9.9, [], None")
    notebook.there("seen")
    first = notebook.start(
        "held_up()\nfor epoch in range(10): loss = 1 / (epoch + 1)\nif epoch: best = [rank]"
    )
    notebook.here("seen.append(1)")
    second = notebook.start("found = epoch, loss, seen, best", gather=["found"])
    third = notebook.start("found = epoch, loss, seen.append(2)", gather=["found"])
    last = notebook.start("found = epoch, seen", gather=["found"])
    held_up()
    first.follow()
    found = [each["found"] for each in values_of(second)]
    assert found == [(9, 0.1, [1], [rank]) for rank in range(4)]
    assert [each["found"] for each in values_of(third)] == [(9, 0.1, None)] * 4
    assert [each["found"] for each in values_of(last)] == [(9, [1, 2])] * 4


def test_what_a_run_could_have_bound_is_sent_if_it_has_not(notebook, held_up) -> None:
    notebook.here("best, rows = 'from here', [0]")
    first = notebook.start("held_up()\nif rank > 1: best, rows = rank, [rank]")
    second = notebook.start("rows.append('second')\nfound = best", gather=["found"])
    third = notebook.start("found = rows", gather=["found"])
    held_up()
    first.follow()
    assert [each["found"] for each in values_of(second)] == ["from here", "from here", 2, 3]
    rows = [each["found"] for each in values_of(third)]
    assert rows == [[0, "second"], [0, "second"], [2, "second"], [3, "second"]]


def test_what_a_run_may_bind_is_not_sent_with_what_shares_an_object(notebook, held_up) -> None:
    notebook.here("rows = [0]\na, b = {'rows': rows}, {'rows': rows}")
    notebook.there("a")
    first = notebook.start("held_up()\nif rank > 1: a = rank")
    notebook.here("a['step'] = rows[0] = 1")
    second = notebook.start("found = b['rows']", gather=["found"])
    held_up()
    first.follow()
    assert [each["found"] for each in values_of(second)] == [[1]] * 4
    own = {"rows": [1], "step": 1}
    assert notebook.ask("a") == [own, own, 2, 3]
    assert notebook.ask("rank > 1 or a['rows'] is b['rows']") == [True] * 4


def test_what_a_run_has_bound_is_kept_by_one_that_could_bind_it_too(notebook, held_up) -> None:
    notebook.here("best = None")
    first = notebook.start("held_up()\nif rank >= 0: best = rank")
    second = notebook.start("if rank < 0: best = -1")
    held_up()
    first.follow()
    second.follow()
    assert notebook.ask("best") == [0, 1, 2, 3]


def test_what_a_run_surely_binds_is_not_sent_with_what_it_may_bind(notebook, held_up) -> None:
    notebook.here("sure, maybe = 'here', 'here'")
    busy = notebook.start("held_up()")
    first = notebook.start("sure = rank\nif rank > 1: maybe = rank")
    second = notebook.start("found = sure, maybe", gather=["found"])
    notebook.here("sure = 'assigned since'")
    held_up()
    busy.follow()
    first.follow()
    found = [each["found"] for each in values_of(second)]
    assert found == [(0, "here"), (1, "here"), (2, 2), (3, 3)]


def test_what_ranks_have_instead_is_not_in_the_way(notebook) -> None:
    notebook.names["pool"] = threading.Lock()
    notebook.there("pool = [rank]")
    assert notebook.ask("pool") == [[0], [1], [2], [3]]
    with pytest.raises(sky.UsageError, match="lock, which work uses, cannot be sent"):
        notebook.here("import threading\nlock = threading.Lock()\ndef work(): lock.acquire()")
        notebook.there("work()")


def test_a_rank_that_is_asked_alone_gets_its_own(notebook) -> None:
    notebook.here("x = 1")
    notebook.there("x = 'head'", ranks=[0])
    assert notebook.ask("x") == ["head", 1, 1, 1]


def test_a_rank_keeps_what_it_has_bound_to_the_name_of_a_module(notebook) -> None:
    notebook.here("import time")
    notebook.there("if rank == 0: time = 3.5")
    assert notebook.ask("time if rank == 0 else time.__name__") == [3.5, "time", "time", "time"]


# What comes back


def test_what_came_back_is_not_sent_again(notebook) -> None:
    notebook.there("y = [rank]", out=["y"])
    assert notebook.names["y"] == [0]
    assert notebook.ask("y") == [[0], [1], [2], [3]]
    notebook.here("y.append('changed')")
    assert notebook.ask("y") == [[rank, "changed"] for rank in range(4)]


def test_what_was_gathered_stays_apart_on_the_ranks(notebook) -> None:
    notebook.there("losses = [rank]", gather=["losses"])
    assert notebook.names["losses"] == [[0], [1], [2], [3]]
    notebook.there("losses.append(1)")
    assert notebook.ask("losses") == [[0, 1], [1, 1], [2, 1], [3, 1]]


def test_what_only_the_head_has_gets_to_the_others(notebook) -> None:
    notebook.there("if rank == 0: heads = 'of the head'", out=["heads"])
    assert notebook.ask("heads") == ["of the head"] * 4


def test_a_value_that_can_be_brought_back_but_not_sent(notebook) -> None:
    notebook.here("class Once:\n  def __reduce__(self): return make, ()")
    notebook.here("def make(): return lock\nimport threading\nlock = 1")
    notebook.there("once = Once()", out=["once"])
    assert notebook.names["once"] == 1


# Functions and classes


def test_a_function_sees_what_was_defined_later(notebook) -> None:
    notebook.here("def helper(): return 'old'\ndef f(): return helper()")
    assert notebook.ask("f()") == ["old"] * 4
    notebook.here("def helper(): return 'new'")
    assert notebook.ask("f()") == ["new"] * 4
    notebook.there("def helper(): return rank")
    assert notebook.ask("f()") == [0, 1, 2, 3]


def test_a_function_changes_the_names_of_its_rank(notebook) -> None:
    notebook.here("n = 10\ndef count():\n  global n\n  n += 1\n  return n")
    notebook.there("count()")
    assert notebook.ask("count()") == [12] * 4
    assert notebook.names["n"] == 10


def test_a_function_that_is_defined_on_ranks_finds_the_names_of_the_notebook(notebook) -> None:
    notebook.here("rate = 1\ndef helper(): return rate")
    notebook.there("def train(): return helper() + rank")
    assert notebook.ask("train()") == [1, 2, 3, 4]
    notebook.here("rate = 10")
    assert notebook.ask("train()") == [10, 11, 12, 13]
    notebook.here("def helper(): return 0")
    assert notebook.ask("train()") == [0, 1, 2, 3]


def test_functions_of_the_ranks_that_call_themselves_and_each_other(notebook) -> None:
    notebook.there(
        "def factorial(n): return n * factorial(n - 1) if n else one\n"
        "def even(n): return n == 0 or odd(n - 1)\n"
        "def odd(n): return n != 0 and even(n - 1)"
    )
    notebook.here("one = 1")
    assert notebook.ask("factorial(4), even(3), odd(3)") == [(24, False, True)] * 4


def test_a_method_uses_a_function_that_only_ranks_have_and_what_that_uses(notebook) -> None:
    notebook.here("class Box:\n  def total(self): return late(1)\nbox, one = Box(), 1")
    assert notebook.ask("box") is not None
    notebook.there("def late(x): return x + one\ntotal = box.total()")
    assert notebook.ask("total, box.total()") == [(2, 2)] * 4


def test_an_object_of_the_ranks_finds_what_the_notebook_assigned_since(notebook) -> None:
    notebook.here(
        "lr = 1\ndef scale(): return 1\nclass Trainer:\n  def step(self): return lr * scale()"
    )
    notebook.there("trainer = Trainer(); step = lambda: lr; alias = scale")
    notebook.here("lr = 2")
    assert notebook.ask("trainer.step(), step()") == [(2, 2)] * 4
    notebook.here("def scale(): return 10")
    assert notebook.ask("trainer.step()") == [20] * 4
    notebook.there("class Late:\n  def get(self): return late\nlate_one = Late()")
    notebook.here("late = 3")
    assert notebook.ask("late_one.get()") == [3] * 4
    # What cannot be sent does not stand in the way of a cell that does not name it.
    notebook.here("late = (i for i in ())")
    assert notebook.ask("trainer.step()") == [20] * 4
    # And what is large does not travel for nothing.
    notebook.here("lr = 3")
    notebook.there("import math as m")
    assert notebook.sent("print(m.pi)") == set()


def test_an_object_of_the_ranks_finds_what_the_notebook_changed_since(notebook) -> None:
    notebook.here(
        "import types, dataclasses\n"
        "cfg, args = {'lr': 1, 'opt': {'m': 1}}, types.SimpleNamespace(lr=1)\n"
        "class CFG: lr = 1\n"
        "@dataclasses.dataclass\nclass Settings: lr: int = 1\n"
        "settings = Settings()"
    )
    notebook.there(
        "class Trainer:\n"
        "  def step(self): return cfg['lr'], cfg['opt']['m'], args.lr, CFG.lr, settings.lr\n"
        "trainer = Trainer()"
    )
    assert notebook.ask("trainer.step()") == [(1, 1, 1, 1, 1)] * 4
    notebook.here("cfg['opt']['m'] = 2; CFG.lr = 3; args.lr = 4; settings.lr = 5")
    assert notebook.ask("trainer.step()") == [(1, 2, 4, 3, 5)] * 4
    assert notebook.sent("trainer.step()") == set()
    # What a rank does itself stays.
    notebook.there("cfg['lr'] = args.lr = rank")
    notebook.here("cfg['opt']['m'] = 6")
    expected = [(rank, 6, rank, 3, 5) for rank in range(4)]
    assert notebook.ask("trainer.step()") == expected
    # What settings look up in turn does not travel for any name of the ranks'.
    notebook.here(
        "data = list(range(1000))\n"
        "@dataclasses.dataclass\nclass Sized:\n"
        "  scale: int = 1\n"
        "  def size(self): return self.scale * len(data)\n"
        "sized = Sized()"
    )
    notebook.there("def steps(): return sized.size()\nloss = steps()")
    notebook.here("data.append(0)")
    assert notebook.sent("print(loss)") == set()
    notebook.here("sized.scale = 2")
    assert notebook.ask("steps()") == [2002] * 4


def test_a_function_comes_back_and_sees_the_notebook(notebook) -> None:
    notebook.there("def there(x): return x + here", out=["there"])
    notebook.here("here = 1\nresult = there(1)")
    assert notebook.names["result"] == 2


def test_what_refers_to_a_function_refers_to_the_one_of_its_name(notebook) -> None:
    # Else `joblib.dump` and `torch.save` refuse it: "it's not the same object as __main__.act".
    notebook.here("def act(x, sign=1): return x * sign\nnet = {'act': act}")
    notebook.there("net['seen'] = net['act'] is act", out=["net"])
    notebook.here("import pickle\nsame = pickle.loads(pickle.dumps(net))['act'] is act")
    assert notebook.names["same"]
    notebook.here("net['changed'] = True")
    assert notebook.ask("net['act'] is act") == [True] * 4
    # A former one stays what it was, on both sides.
    notebook.here("def act(x, sign=-1): return x * sign")
    assert notebook.ask("(net['act'](1), act(1))") == [(1, -1)] * 4
    notebook.there("net['seen'] = 0", out=["net"])
    notebook.here("signs = net['act'](1), act(1)")
    assert notebook.names["signs"] == (1, -1)


def test_what_came_before_a_function_refers_to_it(notebook) -> None:
    notebook.here("def act(x): return x + 7\nclass Net: act = staticmethod(act)\nnet = [act]")
    notebook.there("net, Net")
    assert notebook.ask("Net.act is net[0] is act") == [True] * 4


def test_a_function_whose_types_have_names(notebook) -> None:
    notebook.here(
        "from collections.abc import Callable\n"
        "from typing import NewType, ParamSpec, TypeVarTuple\n"
        "P, Ts = ParamSpec('P'), TypeVarTuple('Ts')\n"
        "Id = NewType('Id', int)\n"
        "def decorated(f: Callable[P, Id], *rest: *Ts) -> Callable[P, Id]: return f"
    )
    notebook.there("known = decorated(len)('ab')", out=["known", "decorated"])
    assert notebook.names["known"] == 2
    same = "decorated.__annotations__['return'] == Callable[P, Id]"
    notebook.here(f"same = {same}")
    assert notebook.names["same"]
    assert notebook.ask(same) == [True] * 4


def test_ranks_log_as_the_notebook_does(notebook, monkeypatch, tmp_path: Path) -> None:
    from rich.logging import RichHandler

    class Coloured(logging.StreamHandler):
        pass

    log = """
import io, logging
for handler in [*logging.root.handlers, *exp.handlers]:
    handler.stream = io.StringIO()
logging.info("one"), exp.debug("two"), logging.getLogger("c").debug("no")
said = [each.stream.getvalue() for each in [*logging.root.handlers, *exp.handlers]]
"""
    printing, own = logging.StreamHandler(), logging.StreamHandler()
    printing.setFormatter(logging.Formatter("{levelname}: {message}", style="{"))
    with monkeypatch.context() as patch:
        patch.setattr(logging.root, "level", logging.INFO)
        patch.setattr(logging.root, "handlers", [printing])
        notebook.here("import logging\nexp = logging.getLogger('exp')\nexp.setLevel('DEBUG')")
        notebook.here("exp.propagate = False")
        patch.setattr(logging.getLogger("exp"), "handlers", [own])
        for _ in range(2):  # the same handlers again, and no further ones
            notebook.there(log, gather=["said"])
            assert notebook.names["said"] == [["INFO: one\n", "two\n"]] * 4
        # Files would be those of many nodes, or would be overwritten by the notebook.
        with closing(logging.FileHandler(tmp_path / "train.log", "w")) as to_file:
            patch.setattr(logging.root, "handlers", [to_file])
            notebook.there(log, gather=["said"])
            assert notebook.names["said"] == [["one\n", "two\n"]] * 4
        # Of other classes, which nodes may not have, too.
        for other in (Coloured(), RichHandler(), RotatingFileHandler(tmp_path / "all.log")):
            patch.setattr(logging.root, "handlers", [logging.NullHandler(), other])
            notebook.there(log, gather=["said"])
            assert notebook.names["said"] == [["one\n", "two\n"]] * 4
            other.close()
        # What a rank has set up itself stays.
        notebook.there("logging.basicConfig(level=logging.ERROR, force=True)")
        assert notebook.ask("logging.root.level") == [logging.ERROR] * 4
    logging.getLogger("exp").propagate = True
    assert notebook.ask("logging.root.level") == [logging.WARNING] * 4


def test_ranks_ignore_the_warnings_that_the_notebook_does(notebook) -> None:
    warn = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    for text in ("one", "two"):
        warnings.warn(text)
    warnings.warn("three", FutureWarning)
said = [str(each.message) for each in seen]
"""
    notebook.there(warn, gather=["said"])
    assert notebook.names["said"] == [["one", "two", "three"]] * 4
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ON.", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        notebook.there(warn, gather=["said"])
        assert notebook.names["said"] == [["two"]] * 4
        # What a rank says itself comes first.
        notebook.there("warnings.simplefilter('always')")
        notebook.there(warn, gather=["said"])
        assert notebook.names["said"] == [["one", "two", "three"]] * 4
        notebook.there("warnings.filters.pop(0)")
    notebook.there(warn, gather=["said"])
    assert notebook.names["said"] == [["one", "two", "three"]] * 4


def test_ranks_print_arrays_as_the_notebook_does(notebook) -> None:
    np = pytest.importorskip("numpy")
    look = "import numpy as np\nsaid = str(np.array([1 / 3]))"
    with np.printoptions(precision=3):
        notebook.there(look, gather=["said"])
        assert notebook.names["said"] == ["[0.333]"] * 4
        # What a rank has set itself stays.
        notebook.there("np.set_printoptions(precision=4)")
        notebook.there(look, gather=["said"])
        assert notebook.names["said"] == ["[0.3333]"] * 4
    notebook.there(look, gather=["said"])
    assert notebook.names["said"] == ["[0.33333333]"] * 4


def test_ranks_have_the_variables_that_the_notebook_has_set_since(notebook, monkeypatch) -> None:
    look = "found = [os.environ.get(name) for name in ('TOLD', 'OTHER', 'PATH', 'AWS_X', 'RANK')]"
    cache = "TORCHINDUCTOR_CACHE_DIR"
    own = f"'WANDB_SERVICE' in os.environ, os.environ.get('{cache}')"
    before = notebook.ask("[os.environ.get('RANK'), os.environ['PATH']]")
    path, own_before = before[0][1], notebook.ask(own)
    notebook.here("import os")
    with monkeypatch.context() as patch:
        for name, value in {"TOLD": "1", "PATH": "/none", "AWS_X": "secret", "RANK": "9"}.items():
            patch.setenv(name, value)
        # What a library sets where it has started a helper beside the notebook.
        patch.setenv("WANDB_SERVICE", "3-1-unix-/tmp/wandb-1/socket")
        notebook.there(look, gather=["found"])
        assert [each[:1] + each[2:4] for each in notebook.names["found"]] == [["1", path, None]] * 4
        assert [each[4] for each in notebook.names["found"]] == [each[0] for each in before]
        # And where torch.compile has its cache on this machine, if the user has not said where.
        patch.setenv(cache, f"{tempfile.gettempdir()}/torchinductor_me")
        assert notebook.ask(own) == own_before
        patch.setenv(cache, "/shared/cache")
        assert notebook.ask(f"os.environ.get('{cache}')") == ["/shared/cache"] * 4
        # What a rank has set itself stays, until the notebook sets it again.
        notebook.there("os.environ['TOLD'] = 'own'")
        patch.setenv("OTHER", "2")
        assert notebook.ask("os.environ['TOLD'], os.environ['OTHER']") == [("own", "2")] * 4
        patch.setenv("TOLD", "3")
        assert notebook.ask("os.environ['TOLD']") == ["3"] * 4
    assert notebook.ask("'TOLD' in os.environ or 'OTHER' in os.environ") == [False] * 4


def test_the_submodules_that_a_cell_reaches_are_imported(notebook) -> None:
    notebook.here("import xml\nimport xml.sax.saxutils")
    assert notebook.ask("xml.sax.saxutils.escape('<')") == ["&lt;"] * 4


def test_a_cached_property_that_is_dropped_here_is_dropped_there(notebook) -> None:
    notebook.here(
        "from functools import cached_property\n"
        "class Table:\n"
        "    @cached_property\n"
        "    def rows(self): return len(source)\n"
        "source, table = [1], Table()\n"
        "table.rows"
    )
    notebook.there("table.mark = rank")
    assert notebook.ask("table.rows, table.mark") == [(1, rank) for rank in range(4)]
    notebook.here("source.append(2)\ndel table.rows\ntable.rows")
    assert notebook.ask("table.rows") == [2] * 4
    assert notebook.sent("table") == set()


def test_a_class_stays_the_same_class(notebook) -> None:
    cell = "class Net:\n  def f(self): return 'old'"
    notebook.here(f"{cell}\nnet = Net()")
    notebook.there("mine = Net()")
    assert notebook.ask("isinstance(net, Net)") == [True] * 4
    notebook.here("other = Net()")
    assert notebook.ask("type(other) is type(mine) is Net") == [True] * 4
    # Running its cell again changes nothing; a changed cell makes another class, as it does here.
    notebook.here(cell)
    assert notebook.ask("isinstance(mine, Net) and isinstance(net, Net)") == [True] * 4
    notebook.here(cell.replace("old", "new"))
    assert (
        notebook.ask("(isinstance(mine, Net), mine.f(), Net().f())") == [(False, "old", "new")] * 4
    )


def test_an_object_keeps_its_class_on_the_way_there_and_back(notebook) -> None:
    notebook.here("class Net:\n  def __init__(self): self.epochs = 0\nnet = Net()")
    notebook.there("net.epochs += 1", out=["net"])
    assert type(notebook.names["net"]) is notebook.names["Net"]
    assert notebook.names["net"].epochs == 1
    [result, *_] = notebook.there("fresh = Net()", out=["fresh"])
    assert type(result["fresh"]) is notebook.names["Net"]


def test_a_class_of_the_ranks_is_one_class_in_the_notebook(notebook) -> None:
    cell = "import dataclasses\n@dataclasses.dataclass\nclass Result:\n  loss: float = 0.5"
    notebook.there(f"{cell}\nresult = Result()", gather=["result"])
    first, *others = notebook.names["result"]
    assert others == [first] * 3
    notebook.there("kind = Result", out=["kind"])
    assert isinstance(first, notebook.names["kind"])


def test_a_class_that_changes_does_not_take_its_objects_along(notebook) -> None:
    notebook.here("class Net:\n  made = 0\n  def f(self): return 1\nnet = Net()\nnet.steps = 0")
    notebook.there("net.steps += 1")
    notebook.here("Net.made += 1\nNet.f = lambda self: 2")
    assert notebook.ask("(net.steps, Net.made, net.f())") == [(1, 1, 2)] * 4


def test_a_class_that_is_asked_for_comes_back_as_it_is_there(notebook) -> None:
    notebook.here(
        "shared = []\nclass CFG:\n  rate, seen, old = 0, shared, 1\n  def f(self): return 1\n"
        "class Sub(CFG): pass\nconfig, kind, f = CFG(), CFG, CFG.f"
    )
    config, kind, f = (notebook.names[name] for name in ("config", "kind", "f"))
    notebook.there(
        "CFG.rate = config.steps = 2\nCFG.seen.append(1)\nCFG.new = 5\ndel CFG.old\n"
        "CFG.g = classmethod(lambda cls: cls.rate)",
        out=["config"],  # of which it is only the class
    )
    assert (config.steps, kind.rate, kind.seen) == (2, 0, [])
    notebook.there("CFG.rate += 1", out=["CFG"])
    assert notebook.names["CFG"] is kind is type(config)
    assert kind.f is f and kind.seen is notebook.names["shared"] == [1]
    assert (notebook.names["Sub"].g(), kind.new, hasattr(kind, "old")) == (3, 5, False)
    # It is not sent back: each rank has its own.
    notebook.there("import os\nCFG.rate = int(os.environ['RANK'])", gather=["CFG"])
    assert notebook.names["CFG"] == [kind] * 4 and kind.rate == 0
    assert notebook.ask("config.rate") == [0, 1, 2, 3]


# What is large


def test_the_sizes_of_what_is_sent(notebook) -> None:
    notebook.here("import numpy as np\nbig = np.arange(1_000_000)\nsmall = 1")
    names = notebook.start("big, small").task.update
    assert names.sizes["big"] > 8_000_000 > 10_000 > names.sizes["small"]
    # The node has it already: what is bound anew to the same is a message.
    notebook.here("big = np.arange(1_000_000)")
    assert notebook.start("big").task.update.sizes["big"] < 10_000


def test_what_has_arrived_is_told_while_it_does(notebook, tmp_path) -> None:
    notebook.here("import numpy as np\nnoise = np.random.default_rng(1).random(4_000_000)")
    seen, go = [], tmp_path / "go"

    def see(progress) -> None:
        seen.append(progress)
        if progress.arrived == progress.total:
            go.touch()

    # The last of it is acknowledged while the cell runs; one that is over at once says no more.
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nnoise"
    run = notebook.start(wait)
    run.follow(sending=see)
    assert {progress.total for progress in seen} == {32_000_000}
    arrived = [progress.arrived for progress in seen]
    assert arrived == sorted(set(arrived))
    assert arrived[-1] == 32_000_000
    assert list(seen[-1].shares.values()) == [1.0]


def test_what_is_huge_is_sent_only_if_that_is_meant(notebook) -> None:
    notebook.here(
        "import numpy as np\na = np.full(300_000, 0.563)\nb = np.full(200_000, 0.564)\nc = 1"
    )
    sync, ranks = notebook.cluster.sync, notebook.cluster.all_ranks
    with pytest.raises(sky.UsageError) as raised:
        sync.update(["a", "b", "c"], notebook.names, ranks, limit=3_000_000)
    assert str(raised.value) == (
        "a (2.4 MB) and b (1.6 MB) would be sent, and more than 3 MB is sent only if you say so: "
        "add `--allow-large` to the cell, or load it inside the cell."
    )
    assert len(sync.update(["a", "b", "c"], notebook.names, ranks, limit=None).groups) >= 3
