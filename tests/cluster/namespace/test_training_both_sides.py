"""The notebook resets parts of a training that goes on on ranks; the others stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.namespace.notebook import Notebook, in_both, open_notebook

BEGIN = """
import copy, torch
from torch import nn
class Trainer:
    def __init__(self, model, opt): self.model, self.opt, self.step, self.log = model, opt, 0, []
    def fit(self):
        update(self.model, self.opt)
        self.step += 1
        self.log.append(self.step)
    def reset(self):
        self.step = 0
        self.log.clear()
def update(model, opt):
    opt.zero_grad()
    (model[0](x).sum() + model[2](x).sum()).backward()  # all numbers are exact
    opt.step()
def begin_anew(net, optimizer):
    net.load_state_dict(initial)
    optimizer.load_state_dict(fresh)
    net.count = 0
    schedule.last_epoch = 0
def make():
    made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    for each in made.parameters(): nn.init.constant_(each, 3)
    made.count = 0
    return made
x = torch.arange(8.).reshape(4, 2)
model = make()
opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
initial, fresh = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
ema = torch.zeros(2)
trainer = Trainer(model, opt)
state = {'best': torch.zeros(1), 'epoch': 0, 'trainer': trainer}
"""
NAMES = "x", "update", "model", "opt", "schedule", "ema", "trainer", "state"
ON_RANKS = [
    "trainer.fit()",
    "update(model, opt)",
    "model.eval()",
    "model[0].requires_grad_(False)",
    "model.count += 1",
    "for group in opt.param_groups: group['lr'] *= 0.5",
    "schedule.step()",
    "ema += {n}",
    "ema.mul_(0.5).add_(1)",
    "state['epoch'] += 1; state['best'] += {n}",
    "state['best'] = torch.full((1,), {n}.)",
    "nn.init.constant_(model[2].weight, {n})",
]
HERE = [
    "model.load_state_dict(initial)",
    "opt.load_state_dict(fresh)",
    "model.train()",
    "model.eval()",
    "model[1].train()",
    "model.requires_grad_(True)",
    "model[0].requires_grad_(False)",
    "model.count = 0",
    "opt.param_groups[0]['lr'] = 0.5",
    "for group in opt.param_groups: group['momentum'] = {n} / 8",
    "nn.init.ones_(model[0].weight)",
    "with torch.no_grad(): model[2].bias.fill_({n})",
    "for p in model.parameters(): p.data.fill_(3)",
    "for p in model[0].parameters(): p.requires_grad = True",
    "model[2].weight.data.zero_()",
    "begin_anew(model, opt)",
    "begin_anew(trainer.model, trainer.opt)",
    "ema.zero_()",
    "ema.data.zero_()",
    "ema[:] = {n}",
    "nn.init.zeros_(ema)",
    "state['best'].zero_()",
    "state['epoch'] = 0",
    "trainer.reset()",
    "trainer.step = {n}",
    "opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)",
    "model = make()",
    "trainer = Trainer(model, opt)",
    "state = {{'best': ema, 'epoch': {n}, 'trainer': trainer}}",
    "trainer.model = model",
    "trainer.opt = opt",
]

SURVEY = """
def _survey():
    def told(module):
        found = [(key, each.tolist()) for key, each in module.state_dict().items()]
        flags = [each.training for each in module.modules()]
        return found, flags, [each.requires_grad for each in module.parameters()]
    def known(opt):
        groups = [{key: each for key, each in group.items() if key != 'params'}
            for group in opt.param_groups]
        states = [{key: each if each is None else each.tolist()
            for key, each in opt.state.get(p, {}).items()} for p in opt.param_groups[0]['params']]
        own = [any(p is each for p in opt.param_groups[0]['params']) for each in model.parameters()]
        return groups, states, own
    return (told(model), model.count, known(opt), told(trainer.model), known(trainer.opt),
        schedule.last_epoch, ema.tolist(), trainer.step, trainer.log, state['epoch'],
        state['best'].tolist(), state['best'] is ema, state['trainer'] is trainer,
        trainer.model is model, trainer.opt is opt)
_surveyed = _survey()
"""

sides = st.sampled_from(["here", "there"])
choices = st.tuples(sides, st.integers(0, 999))


@pytest.fixture
def notebook(shared, monkeypatch) -> Notebook:
    return open_notebook(shared.cluster, monkeypatch)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(chosen=st.lists(choices, min_size=2, max_size=8))
def test_each_side_keeps_what_the_other_did(notebook, chosen) -> None:
    pools = {"here": HERE, "there": ON_RANKS}
    cells = [
        (side, pools[side][number % len(pools[side])].format(n=count))
        for count, (side, number) in enumerate(chosen, 1)
    ]
    ranks, expected = in_both(notebook, BEGIN, cells, NAMES, SURVEY)
    assert ranks == [expected] * 4


def test_a_parameter_that_has_the_name_of_a_loop_is_set_again(notebook) -> None:
    thaw = ("here", "for p in model[0].parameters(): p.requires_grad = True")
    freeze = ("there", "model[0].requires_grad_(False)")
    train = [("here", "trainer = Trainer(model, opt)"), ("there", "trainer.fit()")]
    ask = "_surveyed = [each.requires_grad for each in model.parameters()]"
    ranks, expected = in_both(notebook, BEGIN, [thaw, freeze, *train, thaw], NAMES, ask)
    assert ranks == [expected] * 4
