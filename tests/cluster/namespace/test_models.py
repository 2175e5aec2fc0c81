"""A model that was changed in place in the notebook is changed in place on the ranks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.namespace.notebook import Notebook, open_notebook

MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Tanh(), nn.Linear(3, 1))
"""
OPTIMIZER = "opt = torch.optim.SGD(model.parameters(), lr=0.01)"
TRAIN = """
for _ in range(3):
    opt.zero_grad()
    (model(torch.rand(8, 2)) - 1).square().sum().backward()
    opt.step()
"""
PREPARED = """
from accelerate import Accelerator
model = Accelerator(mixed_precision="bf16", cpu=True).prepare(model)
"""
PREPARED_FSDP2 = """
from accelerate import Accelerator
from torch.distributed.fsdp import fully_shard
model = Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model, evaluation_mode=True)
fully_shard(model)
"""
WRAPPERS = {
    "alone": "pass",
    "DDP": "model = nn.parallel.DistributedDataParallel(model)",
    "FSDP2": "from torch.distributed.fsdp import fully_shard; fully_shard(model)",
    "prepared": PREPARED,
    "prepared FSDP2": PREPARED_FSDP2,
    "compiled": "model = torch.compile(model, backend='eager')",
}
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
"""


@pytest.fixture
def notebook(shared, monkeypatch) -> Notebook:
    return open_notebook(shared.cluster, monkeypatch)


def weights(notebook: Notebook, name: str = "model") -> list[Any]:
    """Return the first weight of the model, as each rank has it."""
    notebook.there(
        f"first = next(iter({name}.parameters())).detach()\n"
        "first = first.full_tensor() if hasattr(first, 'full_tensor') else first",
        gather=["first"],
    )
    return notebook.names["first"]


def is_trained(notebook: Notebook) -> bool:
    import torch

    before = weights(notebook)
    notebook.there(TRAIN)
    after = weights(notebook)
    return not any(torch.equal(*pair) for pair in zip(before, after, strict=True))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_model_that_came_back_and_is_evaluated_is_trained_on(notebook, wrapper: str) -> None:
    notebook.there(f"{MODEL}\n{WRAPPERS[wrapper]}\n{OPTIMIZER}\n{TRAIN}", out=["model"])
    notebook.there("kind = type(model)")
    notebook.here("model.eval()")
    notebook.there("modes = [each.training for each in model.modules()]", gather=["modes"])
    assert not any(map(any, notebook.names["modes"]))
    assert notebook.ask("type(model) is kind") == [True] * 4
    notebook.here("model.train()")
    assert is_trained(notebook)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_weights_that_are_changed_in_the_notebook_arrive(notebook, wrapper: str) -> None:
    import torch

    notebook.there(f"{MODEL}\n{WRAPPERS[wrapper]}\n{OPTIMIZER}\n{TRAIN}", out=["model"])
    notebook.here(
        "import torch\n"
        "first = next(name for name, each in model.named_modules() if name[-1:] == '0')\n"
        "with torch.no_grad(): model.get_submodule(first).weight.fill_(0.7)\n"
        "model.get_submodule(first[:-1] + '1').p = 0.1"
    )
    assert all(torch.equal(each, torch.full((3, 2), 0.7)) for each in weights(notebook))
    assert (
        notebook.ask("next(each.p for each in model.modules() if hasattr(each, 'p'))") == [0.1] * 4
    )
    assert is_trained(notebook)


def test_what_was_trained_since_is_kept_where_only_the_mode_changes(notebook) -> None:
    import torch

    notebook.here(MODEL)
    notebook.there(OPTIMIZER)
    notebook.there(TRAIN)
    trained = weights(notebook)
    notebook.here("model.eval()\nfor each in model[3].parameters(): each.requires_grad_(False)")
    assert all(map(torch.equal, weights(notebook), trained))
    assert notebook.ask("model.training, model[3].bias.requires_grad") == [(False, False)] * 4
    assert notebook.ask("opt.param_groups[0]['params'][0] is model[0].weight") == [True] * 4


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_model_that_is_reset_to_what_ranks_were_sent(notebook, wrapper: str) -> None:
    import torch

    notebook.here(f"{MODEL}\n{OPTIMIZER}\nimport copy\ninitial = copy.deepcopy(model.state_dict())")
    notebook.there(f"{WRAPPERS[wrapper]}\nkind = type(model)\n{OPTIMIZER}\n{TRAIN}")
    for reset in ("model.load_state_dict(initial)", "nn.init.ones_(model[0].weight)"):
        for _ in range(2):
            notebook.here(reset)
            present = notebook.names["model"][0].weight
            assert all(torch.equal(each, present) for each in weights(notebook))
            assert is_trained(notebook)
    assert notebook.ask("type(model) is kind") == [True] * 4


def test_what_is_set_again_in_a_model_and_its_optimizer(notebook) -> None:
    notebook.here(
        f"{MODEL}\nimport copy\nopt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)\n"
        "model.count = 0\ninitial = copy.deepcopy(opt.state_dict())"
    )
    change = (
        "model.eval(); model[0].requires_grad_(False); model.count += 1\n"
        "for group in opt.param_groups: group['lr'] = 0.5"
    )
    seen = "(model[1].training, model[0].weight.requires_grad, model.count)"
    notebook.there(f"{TRAIN}\n{change}")
    notebook.here("model[1].train(); model.requires_grad_(True); model.count = 0")
    assert notebook.ask(f"({seen}, model.training)") == [((True, True, 0), False)] * 4
    notebook.here(
        "model.train()\nkey = 'lr'\nfor group in opt.param_groups:\n    group['lr'] = 0.01\n"
        "    group[key] = 0.01"
    )
    lasting = "(opt.param_groups[0]['lr'], len(opt.state))"
    assert notebook.ask(f"({lasting}, model.training)") == [((0.01, 4), True)] * 4
    notebook.there(change)
    notebook.here("opt.load_state_dict(initial)")
    assert notebook.ask(f"({lasting}, model.training)") == [((0.01, 0), False)] * 4
    assert notebook.ask("opt.param_groups[0]['params'][0] is model[0].weight") == [True] * 4


PROBE = """
class Probe:
    def __init__(self):
        self.last, self.hook = None, model.get_submodule(name).register_forward_hook(self.look)
    def look(self, module, inputs, output):
        self.last = output.shape
        seen.append(len(output))
seen = []
name = next(name for name, each in model.named_modules() if name[-1:] == "3")
probe = Probe()
model.note = probe
"""


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2"])
def test_a_hook_that_the_notebook_adds_and_removes(notebook, wrapper: str) -> None:
    notebook.there(f"{MODEL}\n{WRAPPERS[wrapper]}\n{OPTIMIZER}\n{TRAIN}", out=["model"])
    notebook.there("own = []; model.register_forward_hook(lambda *_: own.append(1))")
    notebook.here(f"{PROBE}model.register_full_backward_hook(lambda *_: None)")
    notebook.there(TRAIN)
    assert notebook.ask("(seen, [*probe.last])") == [([8] * 3, [8, 1])] * 4
    notes = "[each.note is probe for each in model.modules() if hasattr(each, 'note')]"
    assert notebook.ask(notes) == [[True]] * 4
    notebook.here("probe.hook.remove(); del model.note")
    notebook.there(TRAIN)
    assert notebook.ask(f"(seen, {notes}, len(own))") == [([8] * 3, [], 6)] * 4


def test_hooks_of_ranks_are_added_to_those_of_the_notebook(notebook) -> None:
    hook = "model[0].register_forward_hook(lambda *_: called.append({}))"
    # As in a notebook that has added none before, and in a rank that has not.
    notebook.here("from torch.utils.hooks import RemovableHandle; RemovableHandle.next_id = 0")
    notebook.here(f"{MODEL}\ncalled = []; {hook.format(1)}")
    notebook.there(f"{hook.format(2)}\nmodel(torch.ones(2))", out=["model", "called"])
    notebook.here(f"{hook.format(3)}\nmodel(torch.ones(2))")
    assert notebook.names["called"] == [1, 2, 1, 2, 3]


def test_what_the_notebook_removes_of_a_model(notebook) -> None:
    notebook.here(f"{MODEL}\nmodel.register_buffer('mean', torch.zeros(1))")
    notebook.there(OPTIMIZER)
    notebook.here("del model.mean")
    own = "opt.param_groups[0]['params'][0] is model[0].weight"
    assert notebook.ask(f"(hasattr(model, 'mean'), {own})") == [(False, True)] * 4
    notebook.here("model[3].bias = None")
    assert "model was changed in the notebook" in notebook.printed("model")
    assert notebook.ask("model[3].bias") == [None] * 4


def test_an_assignment_of_the_same_object_is_no_other_model(notebook) -> None:
    notebook.there(f"{MODEL}\n{WRAPPERS['DDP']}\n{OPTIMIZER}", out=["model"])
    notebook.here("model = model.eval()")
    assert notebook.ask("type(model).__name__") == ["DistributedDataParallel"] * 4


def test_another_model_takes_the_place_of_the_wrapped_one(notebook) -> None:
    notebook.there(f"{MODEL}\n{WRAPPERS['DDP']}", out=["model"])
    notebook.here(MODEL)
    assert notebook.ask("type(model).__name__") == ["Sequential"] * 4


def test_a_model_and_its_optimizer_that_both_changed(notebook) -> None:
    notebook.here(f"{MODEL}\n{OPTIMIZER}")
    notebook.there(f"{WRAPPERS['DDP']}\n{TRAIN}", out=["model", "opt"])
    notebook.here("with torch.no_grad(): model[0].weight.fill_(7)\nopt.param_groups[0]['lr'] = 1.0")
    assert notebook.sent("model, opt") == {"model", "opt"}
    assert is_trained(notebook)
    assert notebook.ask("opt.param_groups[0]['lr']") == [1.0] * 4
    assert notebook.ask("type(model).__name__") == ["DistributedDataParallel"] * 4


def test_a_rank_that_has_an_older_one_gets_all_that_changed(notebook) -> None:
    notebook.here(MODEL)
    notebook.there("model")
    notebook.here("with torch.no_grad(): model[0].weight.fill_(1)")
    notebook.there("model", ranks=[0, 1])
    notebook.here("with torch.no_grad(): model[0].bias.fill_(2)")
    notebook.there("model")
    assert notebook.ask("model[0].weight[0, 0].item(), model[0].bias[0].item()") == [(1, 2)] * 4


@pytest.mark.parametrize(
    ("wrap", "change", "why"),
    [
        (FSDP1, "with torch.no_grad(): model[0].weight.fill_(7)", "is sharded on this rank"),
        (WRAPPERS["DDP"], "model[3] = torch.nn.Linear(3, 2)", "(1, 3) on this rank"),
        (WRAPPERS["DDP"], "model.append(torch.nn.ReLU())", "it has other modules on this rank"),
        (WRAPPERS["DDP"], "model[2] = torch.nn.ReLU()", "because 2 is of type Tanh"),
    ],
)
def test_what_cannot_be_changed_on_ranks_is_said(
    notebook, wrap: str, change: str, why: str
) -> None:
    notebook.there(f"{MODEL}\n{wrap}", out=["model"])
    notebook.here(f"import torch\n{change}")
    said = notebook.printed("model")
    assert "model was changed in the notebook" in said
    assert why in said
    assert notebook.ask("type(model).__name__") == ["Sequential"] * 4


def test_a_trainer_that_was_made_on_ranks_and_brought_home(notebook) -> None:
    """Only the head has sent its trainer, without the wrapper of its model."""
    notebook.there(
        f"{MODEL}\n{WRAPPERS['DDP']}\n{OPTIMIZER}\nfrom types import SimpleNamespace\n"
        "class Trainer: pass\n"
        "trainer = Trainer(); trainer.model, trainer.opt, trainer.epoch = model, opt, 1\n"
        "trainer.config = SimpleNamespace(epochs=1, patience=3)\n"
        "trainer.loader = torch.utils.data.DataLoader([1, 2])",
        out=["trainer"],
    )
    notebook.there(f"trainer.epoch += 1; trainer.config.epochs = 2\n{TRAIN}")
    before = weights(notebook)[0]
    notebook.here("trainer.config.patience = 9; trainer.model.eval()")
    notebook.there("trainer")
    seen = (
        "(trainer.epoch, trainer.config.epochs, trainer.config.patience, trainer.model is model,"
        " trainer.opt is opt, type(model).__name__, model.module.training)"
    )
    expected = (2, 2, 9, True, True, "DistributedDataParallel", False)
    assert notebook.ask(seen) == [expected] * 4
    assert all(each.equal(before) for each in weights(notebook))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_model_of_torchscript_comes_back_and_one_that_was_changed_replaces_it(notebook) -> None:
    notebook.here(f"{MODEL}\nmodel = torch.jit.script(model)")
    notebook.there(f"{OPTIMIZER}\n{TRAIN}", out=["model"])
    [first, *_] = weights(notebook)
    assert first.equal(next(notebook.names["model"].parameters()))
    notebook.here("with torch.no_grad(): next(model.parameters()).fill_(7)")
    assert "it is of TorchScript: make again what refers to it" in notebook.printed("model")
    assert {each.mean().item() for each in weights(notebook)} == {7}


@pytest.mark.parametrize("wrapper", ["alone", "FSDP2"])
def test_a_model_of_another_precision(notebook, wrapper: str) -> None:
    notebook.there(f"{MODEL}\n{WRAPPERS[wrapper]}\n{OPTIMIZER}\n{TRAIN}", out=["model"])
    notebook.here("model.bfloat16()")
    precision = "{str(each.dtype) for each in model.parameters()}"
    assert notebook.ask(precision) == [{"torch.bfloat16"}] * 4
    own = notebook.ask("opt.param_groups[0]['params'][0] is model[0].weight")
    # What is sharded cannot be changed in place, which is said.
    assert own == [wrapper == "alone"] * 4


ADAM = "opt = torch.optim.Adam(model.parameters(), lr=0.1)"
OWN = "opt.param_groups[0]['params'][0] is model[0].weight"


@pytest.mark.parametrize("out", [[], ["model"], ["model", "opt"]])
def test_another_learning_rate_leaves_the_optimizer_with_its_model(
    notebook, out: list[str]
) -> None:
    notebook.here(f"{MODEL}\n{ADAM}")
    notebook.there(TRAIN, out=out)
    notebook.here("opt.param_groups[0]['lr'] = 0.5")
    seen = f"(opt.param_groups[0]['lr'], {OWN}, opt.state[model[0].weight]['step'].item())"
    assert notebook.ask(seen) == [(0.5, True, 3.0)] * 4
    assert is_trained(notebook)


def test_other_settings_of_an_optimizer_of_the_users(notebook) -> None:
    notebook.here(
        f"{MODEL}\nclass Own(torch.optim.SGD):\n"
        "    def __init__(self, parameters, **settings):\n"
        "        super().__init__(parameters, lr=0.1)\n"
        "        vars(self).update(settings)\n"
        "opt = Own(model.parameters(), rho=0.05, steps=0, bounds=[0, 1], old=1,\n"
        "          norm=None)"
    )
    notebook.there(f"{TRAIN}\nopt.steps += rank")
    notebook.here("opt.rho = 0.1; opt.bounds[1] = 2; del opt.old")
    seen = f"(opt.rho, opt.bounds, hasattr(opt, 'old'), opt.steps, {OWN})"
    assert notebook.ask(seen) == [(0.1, [0, 2], False, rank, True) for rank in range(4)]
    notebook.there("opt.rho = 0.2")
    notebook.here("opt.rho = 0.1")
    assert notebook.ask("(opt.rho, opt.steps)") == [(0.1, rank) for rank in range(4)]
    notebook.here("opt.norm = torch.ones(1)")
    assert notebook.ask("opt.norm") == [None] * 4
    notebook.here("opt.load_state_dict(opt.state_dict())")
    assert notebook.ask("opt.steps") == list(range(4))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_another_learning_rate_of_an_optimizer_that_came_back(notebook, wrapper: str) -> None:
    notebook.there(f"{MODEL}\n{WRAPPERS[wrapper]}\n{ADAM}\n{TRAIN}", out=["opt"])
    notebook.there("former = opt")
    notebook.here("opt.param_groups[0]['lr'] = 0.5")
    assert notebook.ask("(opt is former, opt.param_groups[0]['lr'])") == [(True, 0.5)] * 4
    assert is_trained(notebook)


def test_a_schedule_goes_on_where_the_ranks_are(notebook) -> None:
    notebook.here(f"{MODEL}\n{ADAM}\nschedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)")
    notebook.there(f"{TRAIN}\nschedule.step()")
    notebook.here("opt.param_groups[0]['weight_decay'] = 0.25")
    group = "[opt.param_groups[0][key] for key in ('lr', 'weight_decay')]"
    assert notebook.ask(f"({group}, schedule.last_epoch)") == [([0.05, 0.25], 1)] * 4
    notebook.there("schedule.step()")
    assert notebook.ask("opt.param_groups[0]['lr']") == [0.025] * 4


def test_an_optimizer_that_was_trained_in_the_notebook(notebook) -> None:
    notebook.here(f"{MODEL}\n{ADAM}")
    notebook.there(TRAIN, out=["model", "opt"])
    notebook.here(TRAIN)
    assert notebook.ask(f"({OWN}, opt.state[model[0].weight]['step'].item())") == [(True, 6.0)] * 4
    notebook.here("opt.state.clear()")
    assert notebook.ask("any(opt.state.values())") == [False] * 4


def test_an_optimizer_that_something_else_refers_to(notebook) -> None:
    notebook.here(f"{MODEL}\n{ADAM}\nholder = {{'opt': opt, 'parts': [model]}}")
    notebook.there(f"holder\n{TRAIN}")
    notebook.here("opt.param_groups[0]['lr'] = 0.5; model.eval()")
    seen = "(holder['opt'] is opt, holder['parts'][0] is model, opt.param_groups[0]['lr'])"
    assert notebook.ask(seen) == [(True, True, 0.5)] * 4
    assert notebook.ask(f"({OWN}, len(opt.state), model.training)") == [(True, 4, False)] * 4


TRAINER = f"""
{MODEL}
class Trainer:
    def __init__(self, model):
        self.model, self.log = model, []
        self.opt = torch.optim.Adam(model.parameters(), lr=0.1)
    def fit(self):
        self.opt.zero_grad()
        self.model(torch.ones(8, 2)).square().sum().backward()
        self.opt.step()
        self.log.append(len(self.log))
trainer = Trainer(model)
"""


def test_what_holds_a_model_stays_where_the_model_is_changed(notebook) -> None:
    notebook.here(TRAINER)
    notebook.there("trainer.fit(); trainer.fit(); first = trainer.model[0].weight[0, 0].item()")
    own = "trainer.opt.param_groups[0]['params'][0] is trainer.model[0].weight is model[0].weight"
    seen = f"({own}, trainer.log, len(trainer.opt.state), first == model[0].weight[0, 0].item())"
    notebook.here("model.eval(); trainer.opt.param_groups[0]['lr'] = 0.5; log = trainer.log")
    assert notebook.ask(seen) == [(True, [0, 1], 4, True)] * 4
    of_it = "trainer.model is model, model.training, trainer.opt.param_groups[0]['lr']"
    assert notebook.ask(f"({of_it}, log is trainer.log)") == [(True, False, 0.5, True)] * 4
    notebook.here("trainer.log.append('here'); opt = trainer.opt")
    assert notebook.ask(seen) == [(True, [0, 1, "here"], 4, True)] * 4
    notebook.here("opt.param_groups[0]['lr'] = 0.1; copies = [trainer.model, [opt]]")
    assert notebook.ask(seen) == [(True, [0, 1, "here"], 4, True)] * 4
    assert notebook.ask("copies[0] is model and copies[1][0] is opt is trainer.opt") == [True] * 4
    notebook.here("with torch.no_grad(): model[0].weight.fill_(0.7)")
    assert notebook.ask(seen) == [(True, [0, 1, "here"], 4, False)] * 4
    notebook.here("models = [model]")
    notebook.there("models")
    notebook.here("model.train(); parts = {'models': models}; trainer.parts = [parts, {}]")
    assert (
        notebook.ask("(parts['models'] is models, trainer.parts[0] is parts)") == [(True, True)] * 4
    )
    notebook.here("model.eval(); rest = trainer.parts[1]; holder = [trainer.parts]")
    assert (
        notebook.ask(
            "(trainer.parts[1] is rest, holder[0] is trainer.parts, parts['models'][0] is model)"
        )
        == [(True, True, True)] * 4
    )
    notebook.there("trainer.fit()")
    assert (
        notebook.ask("(trainer.log, abs(model[0].weight[0, 0].item() - 0.7) > 0.01)")
        == [([0, 1, "here", 3], True)] * 4
    )


def test_what_is_pushed_is_that_of_the_notebook(notebook) -> None:
    notebook.here(f"{MODEL}\n{ADAM}")
    notebook.there(TRAIN)
    notebook.push("model", "opt")
    notebook.here("first = model[0].weight[0, 0].item()")
    assert notebook.ask("model[0].weight[0, 0].item()") == [notebook.names["first"]] * 4
    assert notebook.ask(f"({OWN}, len(opt.state))") == [(True, 0)] * 4
    assert is_trained(notebook)
