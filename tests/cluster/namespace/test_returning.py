"""What comes back of an object of the notebook's goes into that object, as if the cell ran here."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.cluster.namespace.notebook import Notebook, open_notebook

MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
opt = torch.optim.Adam(model.parameters(), lr=1.0)
"""
TRAIN = """
opt.zero_grad()
model(torch.tensor([[1., 2.], [3., 5.]])).square().sum().backward()
opt.step()
"""


@pytest.fixture
def notebook(shared, monkeypatch) -> Notebook:
    return open_notebook(shared.cluster, monkeypatch)


def test_a_model_is_still_that_of_its_optimizer_and_holders(notebook) -> None:
    import torch

    notebook.here(
        f"{MODEL}\nclass Trainer: pass\nt = Trainer(); t.model = model; parts = {{'m': model}}\n"
        "before = model; weight = model[1].weight; start = weight.detach().clone()"
    )
    notebook.there(f"parts; t.seen = rank\n{TRAIN}model.eval()", out=["model"])
    names = notebook.names
    assert names["model"] is names["before"] is names["t"].model is names["parts"]["m"]
    assert names["model"][1].weight is names["weight"]
    assert not names["model"].training and names["model"][0].num_batches_tracked == 1
    trained = names["weight"].detach().clone()
    assert not torch.equal(trained, names["start"])
    # What refers to it here has not changed, and is not sent again.
    assert notebook.sent("model, t, parts") == set()
    assert notebook.ask("t.seen, t.model is model") == [(rank, True) for rank in range(4)]
    notebook.here(f"model.train()\n{TRAIN}")
    assert not torch.equal(names["weight"], trained)


def test_bulk_data_that_came_back_is_sent_where_ranks_have_a_copy(notebook) -> None:
    notebook.here("bulk = [[each] for each in range(100_001)]\nholder = {'bulk': bulk}")
    notebook.there("holder; bulk.append(1)", out=["bulk"])
    assert notebook.names["holder"]["bulk"] is notebook.names["bulk"]
    assert notebook.ask("len(holder['bulk'])") == [100_002] * 4


def test_names_that_share_nothing_with_what_came_back_are_not_looked_at(
    notebook, monkeypatch
) -> None:
    monkeypatch.setattr(sys, "looked", [], raising=False)
    notebook.here(
        f"{MODEL}\nimport sys\nclass Table:\n"
        "    def __reduce__(self): sys.looked.append(self.name); return Table, (), vars(self)\n"
        "apart, holder = Table(), Table()\napart.name, holder.name = 'apart', 'holder'\n"
        "holder.model = model"
    )
    notebook.there("import sys; sys.looked = []; apart, holder, model, opt")
    sys.looked.clear()
    notebook.there(TRAIN, out=["model"])
    assert set(sys.looked) == {"holder"}
    assert notebook.sent("holder, apart, model") == set()


def test_a_holder_comes_back_with_what_it_holds(notebook) -> None:
    notebook.here(
        f"{MODEL}\nclass Trainer:\n"
        "    def __init__(self, **parts): vars(self).update(parts)\n"
        "losses = []\n"
        "t = Trainer(model=model, opt=opt, losses=losses, gone=1, step=lambda: model)\nheld = t"
    )
    notebook.there(f"{TRAIN}\nt.losses.append(0.5); t.epoch = 1; del t.gone", out=["t"])
    names = notebook.names
    assert names["t"] is names["held"]
    assert names["t"].model is names["model"] and names["t"].opt is names["opt"]
    assert names["opt"].state[names["model"][1].weight]["step"] == 1
    assert names["losses"] == [0.5] and names["t"].losses is names["losses"]
    assert (names["t"].epoch, hasattr(names["t"], "gone")) == (1, False)
    assert notebook.sent("t, model, opt") == set()


def test_what_an_optimizer_knows_goes_to_the_device_of_its_parameters(notebook) -> None:
    # The device without data stands for a GPU of the notebook, on which tensors do not come back.
    notebook.here(
        "import torch\nmodel = torch.nn.Linear(2, 2, device='meta')\n"
        "opt = torch.optim.SGD(model.parameters(), lr=1.0)"
    )
    notebook.there(
        "new = torch.optim.LBFGS([model.bias])\n"
        "known = {'step': torch.tensor(1.0), 'momentum_buffer': torch.ones(2, 2)}\n"
        "opt.state[model.weight] = known\n"
        "new.state[model.bias] = {'d': torch.ones(2), 'old_dirs': [torch.ones(2)], 'n_iter': 1}",
        out=["opt", "new", "model"],
    )
    opt, new, model = (notebook.names[name] for name in ("opt", "new", "model"))
    known, made = opt.state[model.weight], new.state[model.bias]
    found = [known["momentum_buffer"], made["d"], *made["old_dirs"], known["step"]]
    assert [each.device.type for each in found] == ["meta", "meta", "meta", "cpu"]
    assert made["n_iter"] == 1


def test_what_ranks_have_made_comes_back_into_what_came_back_before(notebook) -> None:
    notebook.there(f"{MODEL}\nseen = []", out=["model", "opt", "seen"])
    notebook.here("before = model, opt, seen")
    notebook.there(f"{TRAIN}\nseen.append(1)", out=["model", "seen", "opt"])
    names = notebook.names
    assert all(
        now is former
        for now, former in zip(
            (names["model"], names["opt"], names["seen"]), names["before"], strict=True
        )
    )
    assert names["opt"].state[names["model"][1].weight]["step"] == 1
    assert names["seen"] == [1]
    notebook.there("model = torch.nn.Linear(2, 2)\nseen = [*seen]", out=["model", "seen"])
    assert names["model"] is not names["before"][0]
    assert names["seen"] is not names["before"][2]


def test_arrays_and_containers_that_were_changed(notebook) -> None:
    notebook.here(
        "import numpy as np, torch, collections\n"
        "array = np.zeros(4); view = array[1:3]; tensor = torch.zeros(4); part = tensor[1:3]\n"
        "table = collections.defaultdict(list); nested = {'table': table, 'pair': ([], set())}\n"
        "former = [array, tensor, table, nested, nested['pair'][0]]"
    )
    notebook.there(
        "array[:] = 1; tensor += 2; table['k'].append(3); nested['pair'][0].append(table)\n"
        "nested['pair'][1].add(4); other = array; fresh = array + 1",
        out=["array", "tensor", "table", "nested", "other", "fresh"],
    )
    names = notebook.names
    array, tensor, table, nested, inner = names["former"]
    assert names["array"] is array is names["other"] and names["tensor"] is tensor
    assert names["view"].tolist() == [1, 1] and names["part"].tolist() == [2, 2]
    assert names["table"] is table is nested["table"] is inner[0] and table == {"k": [3]}
    assert names["nested"] is nested and nested["pair"] == (inner, {4})
    assert names["fresh"].tolist() == [2] * 4 and not np_shares(names["fresh"], array)


def test_other_objects_that_were_changed(notebook) -> None:
    notebook.here(
        "import collections\nclass Slots: __slots__ = ('a', 'b')\nclass Bag(list): pass\n"
        "class Odd:\n"
        "    def __setstate__(self, state): self.seen = state; self.x = state['x'] * 10\n"
        "class Never:\n    def __setstate__(self, state): assert not vars(self)\n"
        "slots, bag, odd, never = Slots(), Bag([1]), Odd(), Never()\n"
        "slots.a = bag.tag = odd.x = 1; cycle = []; cycle.append(cycle)\n"
        "queue = collections.deque([1], maxlen=2); held = slots, bag, odd, cycle, queue"
    )
    notebook.there(
        "slots.b = 2; bag.append(2); bag.tag = 3; odd.x = 2; cycle.append(1); queue.extend([2, 3])",
        out=["slots", "bag", "odd", "cycle", "queue"],
    )
    names = notebook.names
    slots, bag, odd, cycle, queue = names["held"]
    assert names["slots"] is slots and (slots.a, slots.b) == (1, 2)
    assert names["bag"] is bag and (bag, bag.tag) == ([1, 2], 3)
    assert names["odd"] is odd and odd.seen["x"] == 20
    assert names["cycle"] is cycle and cycle[0] is cycle and cycle[1:] == [1]
    assert names["queue"] is queue and [*queue] == [2, 3]
    notebook.there("never.__dict__['x'] = 1; bag.append(4)", out=["never", "bag"])
    assert names["bag"] == [1, 2, 4]


def test_a_partial_function_stays_the_one_that_others_hold(notebook) -> None:
    notebook.here(
        "from functools import partial\ndef add(*a, **k): return a, k\n"
        "part, other = partial(add, 1), partial(add, 5)\nheld = [part, other]"
    )
    notebook.there("part.keywords['rate'] = 2; other = partial(add, 6)", out=["part", "other"])
    part, other, held, add = (notebook.names[name] for name in ("part", "other", "held", "add"))
    assert part is held[0]
    assert part.func is other.func is add
    assert part() == ((1,), {"rate": 2})
    assert (held[1](), other()) == (((5,), {}), ((6,), {}))
    notebook.there("part.label = 'a'; part.__setstate__((add, (7,), {}, vars(part)))", out=["part"])
    assert notebook.names["part"] is part
    assert (part(), part.label, part.func) == (((7,), {}), "a", add)


def test_generators_of_random_numbers_go_on_for_all_that_hold_them(notebook) -> None:
    made = "rng, state, own = np.random.default_rng(1), np.random.RandomState(1), random.Random(1)"
    notebook.here(f"import numpy as np, random\n{made}\nheld = [rng, state, own]")
    draw = "[rng.random(), state.rand(), own.random()]"
    notebook.there(f"drawn = {draw}", out=["drawn", "rng", "state", "own"])
    plain: dict[str, Any] = {}
    exec(f"import numpy as np, random\n{made}\nfirst, second = {draw}, {draw}", plain)
    assert notebook.names["drawn"] == plain["first"]
    held = notebook.names["held"]
    assert held == [notebook.names[name] for name in ("rng", "state", "own")]  # by identity
    assert [held[0].random(), held[1].rand(), held[2].random()] == plain["second"]


def test_a_generator_of_torch_goes_on_for_the_loader_that_holds_it(notebook) -> None:
    made = "import torch\ndice = torch.Generator().manual_seed(1)\nholder = [dice]"
    draw = "torch.randperm(9, generator=dice).tolist()"
    notebook.here(made)
    notebook.there(f"drawn = {draw}", out=["drawn", "dice"])
    plain: dict[str, Any] = {}
    exec(f"{made}\nfirst, second = {draw}, {draw}", plain)
    assert notebook.names["drawn"] == plain["first"]
    assert notebook.names["holder"] == [notebook.names["dice"]]
    notebook.here(f"drawn = {draw.replace('dice', 'holder[0]')}")
    assert notebook.names["drawn"] == plain["second"]


def test_a_list_that_is_large_or_holds_others(notebook) -> None:
    notebook.here(f"{MODEL}\nmany = [0.5] * 2000; models = [model]; held = many, models")
    notebook.there("many.append(1); models.append(torch.nn.Tanh())", out=["many", "models"])
    names = notebook.names
    assert names["many"] is names["held"][0] and len(names["many"]) == 2001
    assert names["models"] is names["held"][1] and names["models"][0] is names["model"]
    notebook.there("many = many + [2]; models = models[:1]", out=["many", "models"])
    assert [*map(len, names["held"])] == [2001, 2]
    notebook.there("many.append(3)", out=["many"])
    assert [len(names["many"]), len(names["held"][0])] == [2003, 2001]


def np_shares(one, other) -> bool:
    import numpy as np

    return bool(np.shares_memory(one, other))


def test_another_array_under_the_name_leaves_the_former_one_alone(notebook) -> None:
    notebook.here("import numpy as np\narray = np.zeros(4); before = array; few = [1]; kept = few")
    notebook.there("array = array + 1; few = few + [2]", out=["array", "few"])
    assert notebook.names["before"].tolist() == [0] * 4 and notebook.names["kept"] == [1]
    assert notebook.names["array"].tolist() == [1] * 4 and notebook.names["few"] == [1, 2]


def test_a_change_made_here_meanwhile_is_still_sent(notebook) -> None:
    notebook.here("items = [1]; table = {'items': items}")
    notebook.there("items.append(2); table['own'] = rank")
    notebook.here("table['here'] = 1")
    notebook.there("items", out=["items"])
    assert notebook.names["table"] == {"items": [1, 2], "here": 1}
    assert notebook.sent("table") == {"table"}


@pytest.mark.parametrize("asked", [("array", "view"), ("view", "array")])
def test_a_change_of_a_view_and_one_of_its_array_come_back_both(notebook, asked) -> None:
    notebook.here(
        "import numpy as np\n"
        "array = np.array([0.0, 1.0, np.nan, 3.0]); view = array[1:3]; other = array[::-2]"
    )
    notebook.there("array[0] = 10; view[1] = 20; other[0] = 30", out=[*asked, "other"])
    assert notebook.names["array"].tolist() == [10, 1, 20, 30]
    assert notebook.names["view"].tolist() == [1, 20]
    assert notebook.names["other"].tolist() == [30, 1]
    assert notebook.names["view"].base is notebook.names["array"]


@pytest.mark.parametrize(("array", "view"), [("array", "view"), ("held['a']", "held['v'][0]")])
def test_what_came_back_of_a_view_stays_when_its_array_comes_back_later(
    notebook, array, view
) -> None:
    notebook.here(
        "import numpy as np; array = np.zeros(3); view = array[:2]\n"
        "held = {'a': array, 'v': [view], 'n': 0}"
    )
    notebook.there("array, view, held")
    asked = sorted({name.partition("[")[0] for name in (array, view)})
    notebook.there(f"{view}[1] = 3; {array}[2] = 4; held['n'] += 1", out=asked)
    assert notebook.names["array"].tolist() == [0, 3, 4]
    notebook.there(f"{array}[0] = 5", out=[array.partition("[")[0]])
    assert notebook.names["array"].tolist() == [5, 3, 4]
    assert notebook.names["view"].tolist() == [5, 3]
    notebook.there(f"{view}[0] += 1", out=asked)
    assert notebook.names["array"].tolist() == [6, 3, 4]
    assert notebook.ask("held['n']") == [1] * 4


def test_a_view_that_is_as_it_came_back_is_not_sent_again(notebook) -> None:
    notebook.here("import numpy as np; array = np.zeros(3); view = array[:2]")
    notebook.there("view[1] = 3; array[2] = 4", out=["array", "view"])
    assert notebook.sent("view") == set()
    assert notebook.sent("array") == {"array"}


def test_what_is_no_longer_under_the_name_by_which_it_came_back_first(notebook) -> None:
    notebook.here(
        "class Box:\n  def __init__(self, config): self.config = config\n"
        "config = {}\nboxes = [Box(config)]"
    )
    notebook.there("config['box'] = boxes[0]", out=["config", "boxes"])
    notebook.there("config = {}\nheld = boxes[0].config", out=["config", "boxes"])
    notebook.here("run = [boxes[0].config]; run[0]['rate'] = 0.1")
    seen = "(run[0] is held, boxes[0].config is held, held['rate'])"
    assert {*notebook.ask(seen)} == {(True, True, 0.1)}


def test_what_is_no_longer_under_the_name_by_which_all_ranks_know_it(notebook) -> None:
    notebook.here(
        "class Box:\n  def __init__(self, config): self.config = config\n"
        "config = {'part': Box(1)}\nboxes = [Box(config)]"
    )
    notebook.there("config, boxes")
    notebook.there("config = {}\nheld = boxes[0].config", out=["config", "boxes"])
    notebook.here("run = [boxes[0].config]; run[0]['rate'] = 0.1")
    seen = "(run[0] is held, boxes[0].config is held, held['rate'])"
    assert {*notebook.ask(seen)} == {(True, True, 0.1)}
