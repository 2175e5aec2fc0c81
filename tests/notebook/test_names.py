"""Which names of a notebook get to the ranks of its cells, as its user sees it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from jupyter_sky.analysis.namespace_diff import NamespaceDiff
from tests.notebook.conftest import Notebook


@pytest.fixture
def notebook(notebook: Notebook) -> Notebook:
    notebook.run("%sky up --nodes 2")
    return notebook


def test_names_that_ipython_has_as_well_are_the_users_once_assigned(notebook: Notebook) -> None:
    notebook.run("open = lambda path: f'opened {path}'\ndisplay, exit, _ = 1, 2, 3")
    assert notebook.run("%%sky\nprint(open('x'), display, exit, _)") == "opened x 1 2 3\n"


def test_names_that_ipython_has_are_those_of_the_rank(notebook: Notebook) -> None:
    notebook.run("'of the notebook'")  # so that it has an `_`
    assert notebook.run("%%sky\nprint(callable(exit), open('/dev/null').name)") == (
        "True /dev/null\n"
    )
    with pytest.raises(NameError, match="'_' is not defined") as raised:
        notebook.run("%%sky\n1 + 1\n_")
    assert raised.value._render_traceback_()[-1] == (
        "ranks keep no output of earlier cells: give the value a name there"
    )


def test_what_the_notebook_has_shown_is_no_name_of_a_rank(notebook: Notebook) -> None:
    notebook.run("model = {}\nbest = model\nmodel")
    notebook.run("%%sky\nmodel['step'] = 1")
    notebook.run("model = 0")
    # What ranks have under this name gets that other name there, and is in `Out` here, too.
    assert notebook.run("%%sky\nprint(model, len(Out))") == "0 0\n"
    assert notebook.run("%%sky\nprint(best)") == "{'step': 1}\n"


def test_a_name_that_analysis_cannot_find_gets_advice(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.run("hidden = 1")
    with pytest.raises(NameError) as raised:
        notebook.run("%%sky\neval('hid' 'den'.strip())")
    assert raised.value._render_traceback_()[-1] == (
        "the notebook has hidden: `%sky push hidden` sends it to the ranks"
    )
    # What a module lacks, a name of the notebook's would not give it.
    (tmp_path / "lacking.py").write_text("def use():\n    return hidden\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NameError) as raised:
        notebook.run("%%sky\nimport lacking\nlacking.use()")
    assert raised.value._render_traceback_()[-1].startswith("on ranks 0-1")
    notebook.run("%sky push hidden")
    assert notebook.run("%%sky\nprint(eval('hidden'))") == "1\n"
    notebook.run("found = 2")
    assert notebook.run("%%sky\nexec('more = found + 1')\nprint(eval('more'))") == "3\n"
    with pytest.raises(NameError) as raised:
        notebook.run("%%sky\nunknown")
    assert raised.value._render_traceback_()[-1].startswith("on ranks 0-1")
    with pytest.raises(NameError) as raised:
        notebook.run("%%sky\nsky.log(loss=1)")
    assert raised.value._render_traceback_()[-1] == (
        "add `import jupyter_sky as sky` to this cell, or run it in the notebook"
    )
    notebook.run("%%sky\ntrack = 1")  # which is like it
    with pytest.raises(NameError) as raised:
        notebook.run("%%sky\nprint(rank)")
    assert raised.value._render_traceback_()[-1] == (
        "each rank has it as `sky.instance_info().rank`, after `import jupyter_sky as sky`"
    )


def test_what_a_restarted_rank_lacks_and_others_have_is_said(notebook: Notebook) -> None:
    notebook.run("%%sky\nimport math")
    notebook.run("%sky restart 1")
    with pytest.raises(NameError) as raised:
        notebook.run("%%sky\nmath.pi")
    assert raised.value._render_traceback_()[-1] == (
        "rank 0 has math, and rank 1 does not: run the cell again that makes it"
    )
    notebook.run("%%sky\nown = 1")
    notebook.run("%%sky\n%reset -f")
    with pytest.raises(NameError) as raised:
        notebook.run("%%sky\nown")
    assert raised.value._render_traceback_()[-1] == (
        "an earlier cell made own on ranks 0-1: run the cell again that makes it"
    )


@pytest.mark.parametrize("where", ["", "%%sky\n"])
def test_ranks_spawn_processes_after_reset(notebook: Notebook, where: str) -> None:
    spawn = (
        "%%sky\nimport multiprocessing\ncontext = multiprocessing.get_context('spawn')\n"
        "process = context.Process(target=print, args=('spawned',), daemon=True)\n"
        "process.start()\nprocess.join()"
    )
    assert "spawned\n" in notebook.run(spawn)
    notebook.run(f"{where}%reset -f")
    assert notebook.run(spawn) == "spawned\n"


def test_what_is_pushed_says_its_size_and_what_is_wrong_with_it(notebook: Notebook) -> None:
    notebook.run("large = bytes(40_000_000)")
    notebook.run("%sky push large")
    assert "sending large (40 MB): sent in" in notebook.stderr
    notebook.run("%%sky --out made\nimport numpy\nmade = numpy.zeros(5_000_000)")
    notebook.run("again = made + 0\n%sky push again")
    assert "sending again (40 MB): already there" in notebook.stderr
    notebook.run(
        "class Picky:\n"
        "    def __reduce__(self): return Picky.make, ()\n"
        "    @staticmethod\n"
        "    def make(): raise LookupError('not here')\n"
        "picky = Picky()"
    )
    with pytest.raises(LookupError, match="not here"):
        notebook.run("%sky push picky")


def test_what_a_cell_changes_through_something_else_comes_back(notebook: Notebook) -> None:
    notebook.run("import types; items = []; holder = types.SimpleNamespace(items=items)")
    notebook.run("%%sky --out items\nholder.items.append(1)")
    assert notebook.namespace["holder"].items == [1]
    assert notebook.namespace["items"] is notebook.namespace["holder"].items


def test_what_comes_back_does_not_go_out_again(notebook: Notebook) -> None:
    notebook.run("%%sky --out x\nimport os\nx = y = os.getpid()")
    notebook.run("%sky pull y")
    notebook.run("%%sky --gather same\nsame = x == y == os.getpid()")
    assert notebook.namespace["same"] == [True, True]
    notebook.run("y = x")
    notebook.run("%%sky --gather same\nsame = x == os.getpid(), y == os.getpid()")
    assert notebook.namespace["same"] == [(True, True), (True, False)]


def test_runs_in_the_middle_of_a_cell_come_after_what_it_did_before(notebook: Notebook) -> None:
    notebook.run(
        "for i in range(3):\n"
        "    x = y = 100 * i\n"
        "    get_ipython().run_cell_magic('sky', '', 'x += 1')\n"
        "    y += 2"
    )
    assert notebook.run("%%sky\nprint(x, y)") == "201 202\n"


def test_an_item_that_is_set_to_what_it_was_is_set_on_the_ranks(notebook: Notebook) -> None:
    notebook.run("counts, steps = {'seen': 0}, []")
    use = "%%sky\ncounts['seen'] += 1; steps.append(1)\nprint(counts, steps)"
    assert notebook.run(use) == "{'seen': 1} [1]\n"
    notebook.run("def reset(): counts['seen'] = 0\nif not counts: steps.clear()")
    assert notebook.run(use) == "{'seen': 2} [1, 1]\n"
    notebook.run("counts['seen'] = 0\nsteps.clear()")
    assert notebook.run(use) == "{'seen': 1} [1]\n"


def test_an_attribute_that_is_set_to_what_it_was_is_set_on_the_ranks(notebook: Notebook) -> None:
    notebook.run(
        "import numpy\n"
        "class Run: pass\n"
        "run, agent, weights = Run(), Run(), numpy.zeros(2)\n"
        "run.step, agent.step, agent.weights = 0, 0, weights"
    )
    use = "%%sky\nrun.step += 1; agent.step += 1; weights += 1\nprint(run.step, weights)"
    assert notebook.run(use) == "1 [1. 1.]\n"
    notebook.run("run.step = 0\nagent.step = 0")
    assert notebook.run(use) == "1 [2. 2.]\n"
    assert notebook.run("%%sky\nprint(agent.step)") == "1\n"  # with what it has learned
    notebook.run("weights *= 0")
    assert notebook.run(use) == "2 [1. 1.]\n"
    notebook.run("weights[:] = 0")
    assert notebook.run("%%sky\nprint(weights, agent.weights)") == "[0. 0.] [0. 0.]\n"


@pytest.mark.parametrize("magic", ["%%time", "%%capture", "%%prun -q", "%time"])
def test_what_a_magic_runs_is_assigned(notebook: Notebook, magic: str) -> None:
    assigned = f"{magic}{' ' if magic == '%time' else chr(10)}step = 0; seen['x'] = 0"
    notebook.run("seen = {'x': 0}\nstep = 0")
    notebook.run("%%sky\nstep += 1; seen['x'] += 1")
    notebook.run(assigned)
    assert notebook.run("%%sky --stdout 1\nprint(step, seen)") == "0 {'x': 0}\n"


@pytest.mark.parametrize("magic", ["%%time", "%%capture"])
def test_what_comes_back_below_a_magic_is_no_assignment(notebook: Notebook, magic: str) -> None:
    notebook.run(
        "class Net:\n    weight = 5\n    def state_dict(self): return {'weight': self.weight}\n"
        "net = Net()"
    )
    notebook.run(f"{magic}\n%%sky --out net:state\nnet.weight = 7")
    assert notebook.namespace["net_state"] == {"weight": 7}
    assert notebook.run("%%sky\nprint(net.weight)") == "7\n"


@pytest.mark.parametrize("magic", ["%%capture", "%%time --no-raise-error"])
def test_a_cell_whose_error_a_magic_shows_has_assigned_nothing(
    notebook: Notebook, magic: str
) -> None:
    notebook.run("count = 1")
    notebook.run("%%sky\ncount += 1\nonly_there = 3")
    notebook.run(f"{magic}\n1 / 0\ncount = 1\nonly_there = 4")
    assert notebook.run("%%sky\nprint(count, only_there)") == "2 3\n"


def test_a_class_that_is_defined_again_is_as_it_was_defined(notebook: Notebook) -> None:
    define = "class CFG:\n    step, seen = 0, []\n\ncfg = CFG()"
    notebook.run(define)
    use = "%%sky\nCFG.step += 1; CFG.seen.append(1)\nprint(cfg.step, CFG.seen)"
    assert notebook.run(use) == "1 [1]\n"
    assert notebook.run(use) == "2 [1, 1]\n"
    notebook.run(define)
    assert notebook.run(use) == "1 [1]\n"


def test_a_cache_that_is_cleared_here_is_cleared_there(notebook: Notebook) -> None:
    notebook.run("import functools\nversion = 1")
    notebook.run("@functools.lru_cache\ndef load(name): return name, version")
    use = "%%sky\nprint(load('data'))"
    assert notebook.run(use) == "('data', 1)\n"
    notebook.run("version = 2")
    assert notebook.run(use) == "('data', 1)\n"
    notebook.run("load.cache_clear()")
    assert notebook.run(use) == "('data', 2)\n"


def test_what_is_set_to_what_it_was_is_so_in_all_that_share_it(notebook: Notebook) -> None:
    notebook.run("counts = {'seen': 0}\nclass Tracker: pass\ntracker = Tracker()")
    notebook.run("tracker.counts, both = counts, [counts]")
    use = "%%sky\ntracker.counts['seen'] += 1\nprint(both, both[0] is tracker.counts)"
    assert notebook.run(use) == "[{'seen': 1}] True\n"
    notebook.run("counts['seen'] = 0")
    assert notebook.run(use) == "[{'seen': 1}] True\n"
    notebook.run("tracker.counts.update(seen=0)")
    assert notebook.run(use) == "[{'seen': 1}] True\n"


def test_what_is_deleted_here_is_deleted_there(notebook: Notebook) -> None:
    notebook.run("list, x, y = [1], 2, 3")
    notebook.run("%%sky\nlist, x, y")
    notebook.run("del list\n%xdel x\nglobals().pop('y')")
    assert notebook.run("%%sky\nprint(list((1,)), {'x', 'y'} & {*globals()})") == "[1] set()\n"


def test_a_cell_that_fails_here_deletes_nothing_there(notebook: Notebook) -> None:
    notebook.run("%%sky\ny = 1")
    with pytest.raises(ZeroDivisionError):
        notebook.run("1 / 0; y = 2")
    assert notebook.run("%%sky\nprint(y)") == "1\n"


@pytest.mark.parametrize("value", ["0", "True", "None", "'text'"])
def test_a_name_that_came_back_is_assigned_the_same_object_later(
    notebook: Notebook, value: str
) -> None:
    """Of some values there is one object alone: that it came back says nothing of an assignment."""
    notebook.run(f"x = {value}")
    notebook.run(f"%%sky --out x\nx = {value}")
    notebook.run("%%sky\nx = 'of the rank'")
    notebook.run(f"x = {value}")
    assert notebook.run("%%sky\nprint(repr(x))") == f"{value}\n"


def test_what_came_back_is_not_sent_back(notebook: Notebook) -> None:
    """Each rank keeps its own, also where the cell that fetched it has other lines."""
    notebook.run("%%sky\nimport os\nown = [os.environ['SKYPILOT_NODE_RANK']]")
    notebook.run("first = 1\nget_ipython().run_line_magic('sky', 'pull own')\nlast = 2")
    lines = notebook.run("%%sky --stdout all\nprint(own[0])").splitlines()
    assert sorted(lines) == ["0 │ 0", "1 │ 1"]


def test_a_key_that_is_no_name_is_none_of_a_rank(notebook: Notebook) -> None:
    notebook.run("%%sky\nglobals()[5] = 'five'")
    assert notebook.run("%%sky\nprint(globals().pop(5))") == "five\n"


def test_a_cell_that_waits_has_what_was_there_when_it_was_asked_for(
    notebook: Notebook, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    notebook.run(
        f"""go, runs, given = {str(go)!r}, [], dict()
code = (
    "import os, time\\nwhile not os.path.exists(go): time.sleep(0.01)\\n"
    "assert rate, 'diverged'\\nused = rate, given['rate'], array[0]"
)
for rate in (0, 1, 2):
    given["rate"], array = rate, [rate] * 100
    options = "--background --out used"
    runs.append(get_ipython().run_cell_magic("sky", options, code))
del rate
given.clear()"""
    )
    go.touch()
    with pytest.raises(AssertionError, match="diverged"):
        notebook.run("runs[0].result()")
    # Whatever the first one has kept the ranks from having is sent again.
    assert notebook.run("print(runs[1].result(), runs[2].result())") == (
        "{'used': (1, 1, 1)} {'used': (2, 2, 2)}\n"
    )


def test_a_cell_in_the_background_says_how_much_of_its_data_was_sent(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run("large = bytes(40_000_000)")
    once = tmp_path / "once"
    code = (
        f"import os, pathlib\nonce = pathlib.Path({str(once)!r})\n"
        "if not once.exists():\n    once.touch()\n    os._exit(1)\nprint(len(large))"
    )
    options = "--background --retry 1"
    notebook.run(f"run = get_ipython().run_cell_magic('sky', {options!r}, {code!r})")
    # The cell is over when its data was sent; a further attempt has no cell to say it in.
    assert "sending large (40 MB): sent in" in notebook.stderr
    notebook.run("run.result()")
    assert "sending" not in notebook.stderr
    assert "40000000\n" in notebook.run("print(run.output)")


def test_a_result_does_not_set_back_what_a_later_cell_has_counted(notebook: Notebook) -> None:
    notebook.run("step = 0")
    options, cell = "--background --out step", "for _ in range(10):\n    step += 1"
    notebook.run(f"run = get_ipython().run_cell_magic('sky', {options!r}, {cell!r})")
    notebook.run(f"%%sky\n{cell}")
    assert notebook.run("run.result()\nprint(step)") == "10\n"
    assert notebook.run("%%sky\nprint(step)") == "20\n"
    notebook.run("step = 10")
    assert notebook.run("%%sky\nprint(step)") == "10\n"


def test_who_keeps_a_run_in_the_background_keeps_no_values(notebook: Notebook) -> None:
    notebook.run(
        """import gc, weakref
class Large: pass
large, run = Large(), None
there = weakref.ref(large)
run = get_ipython().run_cell_magic("sky", "--background --retry 1", "kept = large")
run.result()
del large, Large
_ = gc.collect()"""
    )
    assert notebook.run("print(there())") == "None\n"


def test_the_class_of_what_is_sent_is_found_by_its_name(notebook: Notebook) -> None:
    notebook.run("class Net: width = 1\nnet = Net()")
    saved = "%%sky\nimport pickle\nprint(pickle.loads(pickle.dumps(net)).width)"
    assert notebook.run(saved) == "1\n"
    notebook.run("%%sky\nNet")
    notebook.run("class Net: width = 2\nnet = Net()")
    assert notebook.run(saved) == "2\n"
    # What is sent later may be of an earlier version, or have one that a decorator has replaced.
    notebook.run("class Net: width = 3\nold = Net()\nclass Net: width = 4")
    assert notebook.run("%%sky\nprint(Net.width)") == "4\n"
    assert notebook.run("%%sky\nprint(old.width)") == "3\n"
    assert notebook.run("%%sky\nprint(Net.width)") == "4\n"
    notebook.run(
        "import dataclasses\n@dataclasses.dataclass(slots=True, frozen=True)\n"
        "class Net: width: int\nnet = Net(5)"
    )
    assert notebook.run(saved) == "5\n"
    # A class that ranks have made is theirs.
    notebook.run("%%sky\nclass Net: width = 6")
    assert notebook.run("%%sky\nprint(Net.width, net.width)") == "6 5\n"


def test_a_call_is_given_the_object_that_ranks_have_under_a_name(notebook: Notebook) -> None:
    notebook.run(
        "import jupyter_sky as sky\nMISSING = object()\n"
        "@sky.compute\ndef found(x=MISSING): return x is MISSING, x"
    )
    said = notebook.run(
        "with sky.ComputePool(nodes=2) as pool:\n"
        "    found_here = [*found() @ pool, found(MISSING) >> pool, *pool.map(found, [MISSING])]\n"
        "    other = found(object()) >> pool\n"
        "print([there and x is MISSING for there, x in found_here], other[0])"
    )
    assert said.splitlines()[-1] == "[True, True, True, True] False"


def test_a_call_has_what_its_own_cell_has_set_in_a_module(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings_of_calls.py").write_text("RATE = 1\ndef rate(): return RATE\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = notebook.run(
        "import jupyter_sky as sky, settings_of_calls\n"
        "with sky.ComputePool(nodes=2) as pool:\n"
        "    settings_of_calls.RATE = 2\n"
        "    print(sky.compute(settings_of_calls.rate)() @ pool)"
    )
    assert said.splitlines()[-1] == "[2, 2]"


@pytest.mark.parametrize("moment", ["__init__", "changed"])
def test_stop_beside_a_cell_loses_nothing_that_it_assigns(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    notebook.run("count = 0")
    assert notebook.run("%%sky\ncount += 1\nprint(count)") == "1\n"
    usual = getattr(NamespaceDiff, moment)

    def stopped(self: NamespaceDiff, *args: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return usual(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(NamespaceDiff, moment, stopped)
        assert notebook.run("count = 0") == ""
    assert notebook.run("%%sky\nprint(count)") == "0\n"


def test_stop_between_a_cell_and_its_hooks_loses_nothing_that_it_assigns(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.run("count, flag = 0, None")
    assert notebook.run("%%sky\ncount += 1\nflag = 1\nprint(count)") == "1\n"
    usual = notebook.shell.events.trigger

    def stopped(event: str, *args: object) -> None:
        if event == "post_execute":
            raise KeyboardInterrupt
        usual(event, *args)

    with monkeypatch.context() as patch:
        patch.setattr(notebook.shell.events, "trigger", stopped)
        with pytest.raises(KeyboardInterrupt):
            notebook.run("count = 7")
    assert notebook.run("%%sky\nprint(count)") == "7\n"
    # Nor is it taken for one that goes on: what comes back is over with the cell that asked for it.
    notebook.run("%%sky --out flag\nflag = None")
    notebook.run("%%sky\nflag = 2")
    notebook.run("flag = None")
    assert notebook.run("%%sky\nprint(flag)") == "None\n"
