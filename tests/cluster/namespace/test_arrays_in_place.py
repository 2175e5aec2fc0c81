"""Arrays and tensors that ranks or the notebook change in place."""

from __future__ import annotations

import pytest

from tests.cluster.namespace.notebook import Notebook, open_notebook

TRAIN = """
for _ in range(50):
    opt.zero_grad(); loss = ((data @ W - y)**2).sum(); loss.backward(); opt.step()
"""
BEGIN = """
import torch
W = torch.zeros(3, requires_grad=True)
opt = torch.optim.SGD([W], lr=0.1)
data, y = torch.eye(3), torch.tensor([1., 2., 3.])
"""


@pytest.fixture
def notebook(shared, monkeypatch) -> Notebook:
    return open_notebook(shared.cluster, monkeypatch)


def test_of_large_arrays_that_are_equal_each_is_changed_by_itself(notebook) -> None:
    notebook.here("import numpy; both = [numpy.zeros(100_000) for _ in range(2)]")
    notebook.there("both[0][0] = 1\nnew = [numpy.zeros(100_000) for _ in range(2)]", out=["new"])
    assert notebook.ask("both[1][0].item()") == [0.0] * 4
    notebook.here("new[0][0] = 1")
    assert notebook.names["new"][1][0] == 0


@pytest.mark.parametrize("out", [["W"], ["W", "opt"], []])
@pytest.mark.parametrize("edit", ["with torch.no_grad(): W.zero_()", "W.data.mul_(0).add_(5)"])
def test_a_tensor_that_is_edited_is_trained_on(notebook, edit: str, out: list[str]) -> None:
    notebook.here(BEGIN)
    notebook.there(TRAIN, out=out)
    notebook.here(edit)
    notebook.there(f"{TRAIN}\nis_own = opt.param_groups[0]['params'][0] is W", out=out)
    assert notebook.ask("is_own, loss.item() < 1e-6") == [(True, True)] * 4
    assert notebook.ask("opt.param_groups[0]['params'][0] is W") == [True] * 4


def test_an_optimizer_that_ranks_have_made_trains_a_tensor_that_is_edited(notebook) -> None:
    notebook.here(f"{BEGIN}\ndel opt")
    notebook.there(f"opt = torch.optim.SGD([W], lr=0.1)\n{TRAIN}", out=["W"])
    for _ in range(2):
        notebook.here("with torch.no_grad(): W.zero_()")
        notebook.there(TRAIN, out=["W"])
        assert notebook.ask("loss.item() < 1e-6") == [True] * 4
    assert notebook.names["W"].sum().item() == pytest.approx(6, abs=1e-3)


STEP = "for p in opt.param_groups[0]['params']: p.grad = torch.ones_like(p)\nopt.step()"


@pytest.mark.parametrize(
    "make", ["params = {'w': W, 'b': b}", "params = [(W, b)]", "params = {'all': [b, W]}"]
)
@pytest.mark.parametrize("unnamed", ["pass", "del W, b"])
def test_a_tensor_in_a_container_is_trained_on(notebook, make: str, unnamed: str) -> None:
    notebook.here(f"{BEGIN}\nb = torch.zeros(1, requires_grad=True)\n{make}")
    leaves = "import torch.utils._pytree as trees\nleaves = trees.tree_leaves(params)"
    notebook.here(f"del opt\n{leaves}\nW = max(leaves, key=len)\n{unnamed}\ndel leaves")
    begin = f"{leaves}\nopt = torch.optim.SGD(leaves, lr=1)\n{STEP}"
    notebook.there(begin, out=["params"])
    notebook.here(f"{leaves}\nwith torch.no_grad(): max(leaves, key=len).zero_()\ndel leaves")
    notebook.there(f"params\n{STEP}", out=["params"])
    asked = "sorted(p.sum().item() for p in trees.tree_leaves(params))"
    assert notebook.ask(asked) == [[-3.0, -2.0]] * 4


def test_a_tensor_beside_a_model_is_trained_on(notebook) -> None:
    optimizer = "opt = torch.optim.SGD([W, *lin.parameters()], lr=1)"
    notebook.here(f"{BEGIN}\nlin = torch.nn.Linear(3, 1)\n{optimizer}")
    notebook.there(f"lin, W\n{STEP}", out=["W", "lin"])
    notebook.here("with torch.no_grad(): W.zero_(); lin.bias.zero_()")
    notebook.there(f"lin, W\n{STEP}", out=["W"])
    assert notebook.ask("(W.tolist(), lin.bias.item())") == [([-1.0] * 3, -1.0)] * 4


def test_a_tensor_that_is_needed_later_is_trained_on(notebook) -> None:
    notebook.here(f"{BEGIN}\ndel opt")
    notebook.there(f"opt = torch.optim.SGD([W], lr=0.1)\n{TRAIN}")
    notebook.here("with torch.no_grad(): W.zero_()")
    notebook.there("y.sum()")
    assert notebook.ask("opt.param_groups[0]['params'][0] is W, W.sum().item()") == [(True, 0)] * 4


def test_another_tensor_under_the_name_leaves_the_former_one(notebook) -> None:
    notebook.here(BEGIN)
    notebook.there("opt = torch.optim.SGD([W], lr=1); former = W")
    notebook.here("W = torch.ones(3, requires_grad=True)")
    assert notebook.ask("(W.tolist(), former.tolist())") == [([1.0] * 3, [0.0] * 3)] * 4


def test_what_ranks_have_bound_the_name_to_leaves_the_former_one(notebook) -> None:
    notebook.here(BEGIN)
    notebook.there("former = W; W = W.detach() + 1; W.requires_grad_()")
    notebook.here("with torch.no_grad(): W.fill_(5)")
    assert notebook.ask("(W.tolist(), former.tolist())") == [([5.0] * 3, [0.0] * 3)] * 4


def test_a_tensor_of_another_shape_replaces_that_of_ranks(notebook) -> None:
    notebook.here(BEGIN)
    notebook.there("former = W")
    notebook.here("W.data = torch.ones(2)")
    assert notebook.ask("(W.tolist(), former.tolist())") == [([1.0] * 2, [0.0] * 3)] * 4


def test_tensors_of_the_notebook_that_share_memory_still_do(notebook) -> None:
    notebook.here(BEGIN)
    notebook.there("W")
    notebook.here("part = W.detach()[:2]; W.data[0] = 7")
    notebook.there("W, part; part[1] = 8")
    assert notebook.ask("(W.tolist(), part.tolist())") == [([7.0, 8.0, 0.0], [7.0, 8.0])] * 4


def test_an_array_and_a_tensor_on_the_same_memory_stay_together(notebook) -> None:
    notebook.here(
        "import numpy, torch; a = numpy.zeros(100_000)\n"
        "state = {'a': a, 't': torch.from_numpy(a), 'other': numpy.zeros(100_000)}"
    )
    notebook.there("state['t'] += 1", out=["state"])
    assert notebook.ask("(state['a'][0].item(), state['other'][0].item())") == [(1.0, 0.0)] * 4
    notebook.here("seen = state['a'][0].item(), state['t'][0].item(), state['other'][0].item()")
    assert notebook.names["seen"] == (1.0, 1.0, 0.0)
