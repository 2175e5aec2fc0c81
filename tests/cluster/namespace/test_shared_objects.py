"""Names that share objects in the notebook share them on the ranks, whenever they get there."""

from __future__ import annotations

import pytest

from tests.cluster.namespace.notebook import Notebook, open_notebook

MODEL = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
"""
TRAIN = """
for _ in range(3):
    opt.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    opt.step()
"""


@pytest.fixture
def notebook(shared, monkeypatch) -> Notebook:
    return open_notebook(shared.cluster, monkeypatch)


def trained(notebook: Notebook) -> list[bool]:
    """Say for each rank whether its optimizer changes its model."""
    notebook.there("before = [each.detach().clone() for each in model.parameters()]")
    notebook.there(TRAIN)
    return notebook.ask(
        "not any(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))"
    )


def test_a_model_and_its_optimizer(notebook) -> None:
    notebook.here(f"{MODEL}\nopt = torch.optim.SGD(model.parameters(), lr=1.0)")
    assert trained(notebook) == [True] * 4
    assert trained(notebook) == [True] * 4


def test_an_optimizer_that_is_made_later_finds_the_trained_model(notebook) -> None:
    notebook.here(MODEL)
    notebook.there("with torch.no_grad(): model.weight.fill_(rank)")
    notebook.here("opt = torch.optim.SGD(model.parameters(), lr=1.0)")
    assert notebook.sent("opt, model") == {"opt"}
    notebook.there("opt")
    assert notebook.ask("model.weight[0, 0].item()") == [0.0, 1.0, 2.0, 3.0]
    assert trained(notebook) == [True] * 4


def test_an_optimizer_that_is_made_later_finds_the_wrapped_model(notebook) -> None:
    notebook.here(MODEL)
    notebook.there("model = torch.nn.parallel.DistributedDataParallel(model)")
    notebook.here("opt = torch.optim.SGD(model.parameters(), lr=1.0)")
    assert trained(notebook) == [True] * 4
    assert notebook.ask("type(model).__name__") == ["DistributedDataParallel"] * 4
    assert notebook.ask("opt.param_groups[0]['params'][0] is model.module.weight") == [True] * 4


@pytest.mark.parametrize("wrapper", ["model", "torch.nn.parallel.DistributedDataParallel(model)"])
def test_an_optimizer_that_is_made_after_a_change_finds_the_model(notebook, wrapper) -> None:
    notebook.here(MODEL)
    notebook.there(f"model = {wrapper}", out=["model"])
    notebook.here("model.eval()")
    notebook.there("model")
    notebook.here("opt = torch.optim.SGD(model.parameters(), lr=1.0)")
    assert trained(notebook) == [True] * 4


def test_a_wrapped_model_comes_back_bare_and_stays_wrapped_there(notebook) -> None:
    import torch

    notebook.here(f"{MODEL}\nopt = torch.optim.SGD(model.parameters(), lr=1.0)")
    notebook.there(
        f"model = torch.nn.parallel.DistributedDataParallel(model)\n{TRAIN}", out=["model"]
    )
    assert type(notebook.names["model"]) is torch.nn.Linear
    assert notebook.sent("model, opt") == set()
    assert notebook.ask("type(model).__name__") == ["DistributedDataParallel"] * 4
    assert trained(notebook) == [True] * 4
    [weight, *others] = notebook.ask("model.module.weight.detach()")
    assert all(torch.equal(weight, other) for other in others)


def test_a_trained_model_and_its_optimizer_come_back_together(notebook) -> None:
    import torch

    notebook.here(f"{MODEL}\nopt = torch.optim.Adam(model.parameters())")
    notebook.there(TRAIN, out=["model", "opt"])
    before = notebook.names["model"].weight.detach().clone()
    notebook.here(TRAIN)
    assert not torch.equal(notebook.names["model"].weight, before)
    [state] = [notebook.names["opt"].state[notebook.names["model"].weight]]
    assert state["step"] == 6


def test_what_is_made_of_what_came_back_finds_what_is_there(notebook) -> None:
    notebook.here(f"{MODEL}\nopt = torch.optim.SGD(model.parameters(), lr=1.0)")
    notebook.there(TRAIN, out=["model", "opt"])
    notebook.here("schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)")
    assert notebook.sent("schedule, opt, model") == {"schedule", "opt"}
    notebook.there("opt.step()\nschedule.step()")
    assert notebook.ask("schedule.optimizer is opt") == [True] * 4
    assert notebook.ask("opt.param_groups[0]['lr']") == [0.5] * 4
    assert trained(notebook) == [True] * 4


def test_an_object_that_refers_to_what_is_there(notebook) -> None:
    cell = """
class Node:
    def __init__(self, **parts): vars(self).update(parts)
config = {"rate": 1}
first = Node(config=config)
"""
    notebook.here(cell)
    notebook.there("first.seen = rank\nconfig['rate'] = 10 + rank")
    notebook.here("second = Node(first=first, config=config)")
    assert notebook.sent("second") == {"second"}
    notebook.there("second")
    assert notebook.ask("second.first is first and second.config is config") == [True] * 4
    assert notebook.ask("second.first.seen, second.config['rate']") == [
        (rank, 10 + rank) for rank in range(4)
    ]


def test_of_two_that_share_a_list_only_the_changed_one_is_sent(notebook) -> None:
    notebook.here("both = [1]\na = {'both': both}\nb = {'both': both}")
    notebook.there("a['mark'] = rank\nb")
    assert notebook.ask("a['both'] is b['both']") == [True] * 4
    notebook.here("b['more'] = 2")
    assert notebook.sent("a, b") == {"b"}
    notebook.there("b['both'].append('of all')")
    assert notebook.ask("a") == [{"both": [1, "of all"], "mark": rank} for rank in range(4)]


def test_of_two_that_share_a_list_both_are_sent_when_it_changed(notebook) -> None:
    notebook.here("both = [1]\na = {'both': both}\nb = {'both': both}")
    notebook.there("a, b")
    notebook.here("both.append(2)")
    assert notebook.sent("a") == {"a", "b"}
    notebook.there("a['both'].append(3)")
    assert notebook.ask("b") == [{"both": [1, 2, 3]}] * 4


def test_what_shares_a_list_of_tensors_finds_it_as_the_rank_has_changed_it(notebook) -> None:
    # Such a list is not referred to weakly, and nothing is kept alive: it is found by its place.
    notebook.here("import torch\nparts = [torch.zeros(2)]\na = {'parts': parts}")
    notebook.there("for each in a['parts']: each += 1\na['parts'].append(rank)")
    notebook.here("b = {'parts': parts}")
    assert notebook.sent("b") == {"b"}
    notebook.there("b")
    assert notebook.ask("a['parts'] is b['parts']") == [True] * 4
    assert notebook.ask("b['parts'][0].tolist(), b['parts'][1]") == [
        ([1.0, 1.0], rank) for rank in range(4)
    ]


CLOSURES = """
import numpy as np
def trainer():
    weights, losses, best = np.zeros(2), [np.zeros(1)], None
    def step():
        nonlocal best
        weights[:] += 1
        losses.append(weights.sum())
        best = weights.copy()
    def state():
        return weights.tolist(), len(losses), best is not None and best.tolist()
    return step, state
step, state = trainer()
"""


def test_functions_that_share_variables_do_so_whenever_they_get_there(notebook) -> None:
    notebook.here(CLOSURES)
    notebook.there("step()\nstep()")
    trained = ([2.0, 2.0], 3, [2.0, 2.0])
    assert notebook.ask("state()") == [trained] * 4
    notebook.there("step()", out=["step"])
    assert notebook.names["state"]() == ([3.0, 3.0], 4, [3.0, 3.0])
    assert notebook.ask("state()") == [([3.0, 3.0], 4, [3.0, 3.0])] * 4


ALIASES = """
import numpy as np
from dataclasses import dataclass
@dataclass(slots=True)
class Counts:
    seen: int = 0
class Agent: pass
rng, buffer, text, many = np.random.default_rng(0), [np.zeros(2)], bytearray(b"a"), [*range(2000)]
counts = Counts()
"""


def test_objects_without_weak_references_are_what_the_rank_has(notebook) -> None:
    notebook.here(ALIASES)
    notebook.there(
        "drawn = rng.random()\nbuffer.append(rank)\ntext += b'b'\nmany.append(1)\ncounts.seen = 5"
    )
    notebook.here("agent = Agent()\nagent.all = rng, {'buffer': buffer}, text, many, counts")
    assert notebook.sent("agent") == {"agent"}
    notebook.there("agent")
    notebook.there("first, held, *rest = agent.all")
    notebook.there("same = [first is rng, held['buffer'] is buffer]")
    notebook.there("same += [rest[0] is text, rest[1] is many, rest[2] is counts]")
    assert notebook.ask("same") == [[True] * 5] * 4
    assert (
        notebook.ask("rng.random() != drawn, len(buffer), text, len(many), counts.seen")
        == [(True, 2, b"ab", 2001, 5)] * 4
    )
    notebook.there("agent.all[1]['buffer'].append(2)", out=["agent"])
    assert notebook.names["agent"].all[1]["buffer"] is notebook.names["buffer"]
    assert notebook.names["buffer"][1:] == [0, 2]
    assert notebook.names["counts"].seen == 5


def test_what_gets_another_name_stays_as_ranks_have_changed_it(notebook) -> None:
    notebook.here(f"{MODEL}\na, b = [1], [2]")
    notebook.there("with torch.no_grad(): model.weight.fill_(rank)\na.append(rank), b.append(-1)")
    notebook.here("best = model\nmodel = torch.nn.Linear(2, 1)\na, b = b, a")
    assert notebook.ask("best.weight[0, 0].item(), model.weight[0, 0].item() == rank") == [
        (rank, False) for rank in range(4)
    ]
    assert notebook.ask("a, b") == [([2, -1], [1, rank]) for rank in range(4)]
    notebook.here("opt = torch.optim.SGD(best.parameters(), lr=1.0)\nlast = best\ndel best")
    assert notebook.ask("last.weight[0, 0].item()") == [0, 1, 2, 3]
    assert notebook.ask("opt.param_groups[0]['params'][0] is last.weight") == [True] * 4


def test_what_gets_another_name_before_a_rank_has_got_it(notebook, held_up) -> None:
    notebook.here("a = [0]")
    notebook.there("a")
    notebook.here("a.append(1)")
    first = notebook.start("held_up()")
    second = notebook.start("a")
    second.stop()
    held_up()
    first.follow()
    second.follow()
    assert second.stopped and not second.sent
    notebook.here("b, a = a, None")
    assert notebook.ask("b") == [[0, 1]] * 4


def test_what_gets_another_name_after_some_ranks_have_got_it(notebook) -> None:
    notebook.here("a = [0]")
    notebook.there("a")
    notebook.here("a.append(1)")
    notebook.there("a[0] = 5", ranks=[0])
    notebook.here("b, a = a, None")
    assert notebook.ask("b") == [[5, 1], [0, 1], [0, 1], [0, 1]]


def test_what_is_in_something_else_under_a_name_that_ranks_have_bound(notebook) -> None:
    notebook.here("import numpy\na, kept = numpy.array([2, 1]), [0]")
    notebook.there("(held, a), (both, kept) = (a, rank), (kept, rank)\nboth.append(rank)")
    notebook.here("getattr(a, 'sort')()\nrows = [a, kept]")
    assert notebook.ask("rows[0].tolist(), rows[1], rows[1] is both") == [
        ([1, 2], [0, rank], True) for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("model, log = torch.nn.Linear(2, 1), []", "model, log"),
        ("pass", "model, log = 1, 2"),
        ("del model, log", "1"),
    ],
)
def test_what_has_another_name_stays_so_when_the_former_is_used_first(
    notebook, here, there
) -> None:
    notebook.here(f"{MODEL}\nlog, saved = [], {{}}")
    notebook.there("with torch.no_grad(): model.weight.fill_(rank)\nlog.append(rank), saved")
    notebook.here(f"best, logs = model, {{'first': log}}\nsaved['first'] = log\n{here}")
    notebook.there(there)
    assert notebook.ask("best.weight[0, 0].item(), logs, saved['first'] is logs['first']") == [
        (rank, {"first": [rank]}, True) for rank in range(4)
    ]


def test_what_came_back_stays_as_ranks_change_it_under_another_name(notebook) -> None:
    notebook.there(f"{MODEL}\nlog = []", out=["model", "log"])
    notebook.here("best, logs = model, {'first': log}")
    notebook.there("with torch.no_grad(): model.weight.fill_(rank)\nlog.append(rank)")
    notebook.here("model = log = None")
    notebook.there("model, log")
    found = notebook.ask("best.weight[0, 0].item(), logs")
    assert found == [(rank, {"first": [rank]}) for rank in range(4)]


@pytest.mark.parametrize("between", ["1", "model", "model, saved"])
def test_what_is_put_into_what_ranks_have_stays_as_they_have_changed_it(notebook, between) -> None:
    notebook.here(f"{MODEL}\nsaved = {{}}")
    notebook.there("with torch.no_grad(): model.weight.fill_(rank)\nsaved")
    notebook.here("saved['best'] = model\nmodel = torch.nn.Linear(2, 1)")
    notebook.there(between)
    assert notebook.ask("saved['best'].weight[0, 0].item()") == [0, 1, 2, 3]


def test_what_is_put_into_something_else_stays_as_ranks_have_changed_it(notebook) -> None:
    notebook.here(f"import numpy as np\n{MODEL}\nsteps = [np.zeros(1)]")
    notebook.there("with torch.no_grad(): model.weight.fill_(rank)\nsteps[0] += rank")
    notebook.here("model = torch.nn.Sequential(model, torch.nn.ReLU())\nsteps = {'of': steps}")
    notebook.there("steps['of'].append(5)")
    assert notebook.ask("model[0].weight[0, 0].item(), steps['of'][0].item()") == [
        (rank, rank) for rank in range(4)
    ]
    notebook.here("runs = [steps]\nsteps = None")  # the list has no other place on ranks by now
    assert notebook.ask("len(runs[0]['of'])") == [2] * 4


def test_ranks_that_lack_different_things_keep_the_same_objects(notebook) -> None:
    notebook.here("class Node: pass\nfirst, second = Node(), Node()\nfirst.steps = [1]")
    notebook.there("first.steps.append(rank)", ranks=[1])
    notebook.here("second.first, third = first, Node()\nthird.second = second")
    notebook.there("third.second.first.mark = rank\nsecond.mark = rank")
    notebook.here("kept = third.second\nlast = [kept, third.second.first]")
    assert notebook.ask("[each.mark for each in last], last[0] is kept is second") == [
        ([rank, rank], True) for rank in range(4)
    ]


def test_a_frame_gets_another_name(notebook) -> None:
    # Pickles of frames have parts in common that ranks do not keep.
    notebook.here("import pandas\nframe = pandas.DataFrame({'x': [1, 2]})")
    notebook.there("frame['mine'] = rank")
    notebook.here("raw = frame\nframe = pandas.DataFrame({'y': [3]})")
    columns = notebook.ask("[*raw.columns], [*frame.columns], int(raw.mine.sum())")
    assert columns == [(["x", "mine"], ["y"], 2 * rank) for rank in range(4)]


def test_a_list_that_a_rank_has_replaced_is_another_one(notebook) -> None:
    notebook.here("import numpy as np\na = {'parts': [np.zeros(2)]}")
    notebook.there("a['parts'] = [rank]")
    notebook.here("parts = a['parts']")
    assert notebook.ask("len(parts), parts is a['parts'], a['parts']") == [
        (1, False, [rank]) for rank in range(4)
    ]


def test_what_takes_the_place_of_something_that_ranks_hold_on_to(notebook) -> None:
    notebook.here("class Box: pass\nconfig = {'box': Box()}")
    notebook.there("held = config")
    notebook.push("config")
    notebook.here("run = [config]")
    assert {*notebook.ask("(run[0] is config, held is config)")} == {(True, False)}


def test_what_is_gone_on_a_rank_is_sent_as_a_copy(notebook) -> None:
    notebook.here(MODEL)
    notebook.there("model\nif rank == 2: del model")
    notebook.here("opt = torch.optim.SGD(model.parameters(), lr=1.0)")
    notebook.there("opt")
    assert (
        notebook.ask("opt.param_groups[0]['params'][0].tolist()")
        == [notebook.names["model"].weight.tolist()] * 4
    )
    assert notebook.ask("rank == 2 or opt.param_groups[0]['params'][0] is model.weight") == (
        [True] * 4
    )


def test_nothing_is_kept_alive_on_a_rank(notebook) -> None:
    notebook.here("import torch, weakref, gc\nmodel = torch.nn.Linear(2, 1)\nbox = [torch.ones(3)]")
    notebook.there("alive = [weakref.ref(model.weight), weakref.ref(box[0])]\ndel model, box")
    notebook.there("gc.collect()")
    assert notebook.ask("[each() for each in alive]") == [[None, None]] * 4


SENTINEL = """
MISSING = object()
def is_missing(value=MISSING): return value is MISSING
"""


def test_nothing_is_kept_alive_here_by_what_began_empty(notebook) -> None:
    notebook.here("import numpy as np, weakref; saved = {}")
    notebook.there("saved['there'] = rank")
    notebook.here("saved['here'] = np.zeros(2); here = weakref.ref(saved['here'])")
    assert notebook.ask("sorted(saved)") == [["here", "there"]] * 4
    notebook.here("saved['more'] = 1")
    assert notebook.ask("sorted(saved)") == [["here", "more", "there"]] * 4
    notebook.here("saved = {}")
    assert notebook.ask("saved") == [{}] * 4
    assert notebook.names["here"]() is None


def test_a_sentinel_is_one_object(notebook) -> None:
    notebook.here(f"{SENTINEL}\nclass Node: pass\nnode = Node()\nnode.value = MISSING")
    notebook.here("pair = MISSING, object()")
    assert notebook.ask("is_missing(), is_missing(object())") == [(True, False)] * 4
    assert notebook.ask("node.value is MISSING") == [True] * 4
    assert notebook.ask("[each is MISSING for each in pair]") == [[True, False]] * 4


def test_a_function_that_is_made_later_finds_the_sentinel_that_is_there(notebook) -> None:
    notebook.here("MISSING = object()")
    notebook.there("kept = MISSING\nMISSING = rank")
    notebook.here("def default(value=MISSING): return value")
    assert notebook.sent("default") == {"default"}
    assert notebook.ask("default() is kept") == [True] * 4


def test_a_sentinel_that_is_gone_on_a_rank_is_sent_again(notebook) -> None:
    notebook.here("MISSING = object()")
    notebook.there("MISSING\nif rank == 2: del MISSING")
    notebook.here("def default(value=MISSING): return value")
    assert notebook.ask("type(default()) is object") == [True] * 4
    assert notebook.ask("rank == 2 or default() is MISSING") == [True] * 4


def test_functions_that_share_a_variable(notebook) -> None:
    cell = (
        "def make():\n  n = 0\n  def add():\n    nonlocal n\n    n += 1\n  return add, lambda: n\n"
    )
    notebook.here(f"{cell}add, get = make()")
    notebook.there("add(); get")
    assert notebook.ask("(add(), get())[1]") == [2] * 4


def test_tensors_that_share_memory(notebook) -> None:
    notebook.here("import torch\nwhole = torch.zeros(4, 4)\nrow = whole[1]")
    notebook.there("row += rank\nwhole")
    assert notebook.ask("whole.sum().item()") == [0.0, 4.0, 8.0, 12.0]
    notebook.here("column = whole[:, 0]")
    notebook.there("column += 1")
    assert notebook.ask("whole[0, 0].item()") == [1.0] * 4


def test_a_rank_that_started_anew_gets_everything(new, monkeypatch) -> None:
    notebook = open_notebook(new(2).cluster, monkeypatch)
    notebook.here(MODEL)
    notebook.there("model")
    notebook.cluster.restart([1])
    notebook.here("opt = torch.optim.SGD(model.parameters(), lr=1.0)")
    notebook.there("opt, model")
    assert notebook.ask("opt.param_groups[0]['params'][0] is model.weight") == [True] * 2


def test_a_sentinel_in_a_class_is_the_one_under_the_name(notebook) -> None:
    notebook.here(
        "MISSING = object()\nclass Node:\n    value = MISSING\n"
        "    def is_missing(self, value=MISSING): return value is MISSING"
    )
    assert notebook.ask("Node.value is MISSING, Node().is_missing()") == [(True, True)] * 4
    notebook.there("there = MISSING")
    notebook.here("Node.value = [MISSING]")
    assert notebook.ask("Node.value[0] is MISSING is there") == [True] * 4
    notebook.here("MISSING = object()")
    assert notebook.ask("Node.value[0] is MISSING") == [False] * 4


def test_a_sentinel_of_a_rank_is_one_here_too(notebook) -> None:
    notebook.there("own = object()\nclass There:\n    own = own")
    own, other = notebook.ask("own"), notebook.ask("[own, There().own]")
    assert all(pair[0] is pair[1] is one for one, pair in zip(own, other, strict=True))
    assert len({id(each) for each in own}) == 4
    assert len(set(notebook.ask("There"))) == 1


CLASS = """
config = {"depth": 1}
class Net:
    config = config
    def default(self, given=config): return given
"""
IS_SHARED = "(Net.config is config is Net().default(), config)"


def test_a_class_and_what_it_shares_with_a_name(notebook) -> None:
    notebook.here(CLASS)
    assert notebook.ask(IS_SHARED) == [(True, {"depth": 1})] * 4
    notebook.there("config['rank'] = rank")
    notebook.here("Net.width = 2")  # the class is sent again, and finds what is there
    shared = [(True, {"depth": 1, "rank": rank}) for rank in range(4)]
    assert notebook.ask(f"Net.width and {IS_SHARED}") == shared
    notebook.here("config['depth'] = 2")
    shared = [(True, {"depth": 2, "rank": rank}) for rank in range(4)]
    assert notebook.ask(IS_SHARED) == shared
    notebook.here("config = dict(config)")
    assert notebook.ask(IS_SHARED) == [(False, {"depth": 2})] * 4


def test_a_class_that_is_made_later_finds_what_is_under_the_name(notebook) -> None:
    notebook.here("config = {'depth': 1}")
    notebook.there("config['rank'] = rank")
    notebook.here(
        "class Net:\n    config = config\n    def default(self, given=config): return given"
    )
    assert notebook.ask(IS_SHARED) == [(True, {"depth": 1, "rank": rank}) for rank in range(4)]


def test_a_name_that_is_needed_later_is_what_the_class_has(notebook) -> None:
    notebook.here(CLASS)
    notebook.there("Net.config['rank'] = rank")
    assert notebook.ask(IS_SHARED) == [(True, {"depth": 1, "rank": rank}) for rank in range(4)]


def test_a_class_whose_shared_object_is_gone_has_a_copy(notebook) -> None:
    notebook.here("config = {'depth': 1}")
    notebook.there("config\nif rank == 2: del config")
    notebook.here("class Net:\n    config = config")
    assert notebook.ask("Net.config") == [{"depth": 1}] * 4
    assert notebook.ask("rank == 2 or Net.config is config") == [True] * 4


def test_what_is_pushed_is_shared_with_what_has_it(notebook) -> None:
    notebook.here("part = [1]\nwhole = {'part': part}")
    notebook.there("part.append(2), whole")
    notebook.push("part")
    assert notebook.ask("(part, whole['part'] is part)") == [([1], True)] * 4
