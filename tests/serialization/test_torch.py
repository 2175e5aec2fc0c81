"""What torch makes of functions and models travels: compiled ones, and computed weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from jupyter_sky.node.rank.namespace.takeover import models
from jupyter_sky.serialization import blobs
from jupyter_sky.serialization.pickling import dump, load
from jupyter_sky.serialization.reducers import torch_objects
from jupyter_sky.transport import present_run
from tests.installed import on_first_use

torch = on_first_use("torch")


def trip(value: Any) -> Any:
    pickled = dump(value)
    return load(pickled.stream, map(bytearray, pickled.buffers))


def digest(value: Any) -> str:
    return blobs.content(blobs.pack(dump(value, without_caches=True))[0])


def plus_one(x: Any) -> Any:
    return x + 1


def branches(x: Any) -> Any:
    if x.sum() > 0:  # which torch.compile cannot follow
        return x
    return -x


@pytest.fixture
def compiled() -> Any:
    # It compiles nothing, and goes through all the rest.
    return torch.compile(plus_one, backend="eager")


def test_a_compiled_function(compiled: Any) -> None:
    before = digest(compiled)
    copy = trip(compiled)
    assert torch.equal(copy(torch.ones(2)), torch.full((2,), 2.0))
    assert copy._torchdynamo_orig_callable(1) == 2
    compiled(torch.ones(3))
    assert digest(compiled) == before  # so that it is not sent again


def test_how_it_is_compiled_stays() -> None:
    copy = trip(torch.compile(branches, backend="eager", fullgraph=True))
    with pytest.raises(Exception, match="control flow|branch"):
        copy(torch.ones(2))
    assert torch.equal(
        trip(torch.compile(branches, backend="eager"))(-torch.ones(2)), torch.ones(2)
    )


def test_a_compiled_model() -> None:
    model = torch.compile(torch.nn.Linear(2, 1), backend="eager", dynamic=True)
    before = digest(model)
    copy, inner = trip([model, model._orig_mod])
    assert copy._orig_mod is inner
    assert torch.equal(copy(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert digest(model) == before


def test_a_method_that_is_compiled() -> None:
    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.step = torch.compile(self.step, backend="eager")

        def step(self, x: Any) -> Any:
            return self.layer(x)

        @torch.compile(backend="eager")
        def forward(self, x: Any) -> Any:
            return self.layer(x)

    net = Net()
    copy = trip(net)
    assert torch.equal(copy.step(torch.ones(1, 2)), net(torch.ones(1, 2)))
    assert torch.equal(copy(torch.ones(1, 2)), net(torch.ones(1, 2)))


@pytest.mark.parametrize("times", [1, 2])
def test_a_model_that_was_prepared_for_mixed_precision(times: int) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    model, x = torch.nn.Linear(2, 1), torch.full((1, 2), 1 / 3)
    exact, before = model(x), digest(model)
    try:
        for _ in range(times):  # as in a cell that is run again
            vars(model).pop("_is_accelerate_prepared", None)
            Accelerator(mixed_precision="bf16", cpu=True).prepare(model)
        rounded = model(x)
        assert digest(model) == before
        copy, compiled = trip([model, torch.compile(model, backend="eager")])
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert torch.equal(copy(x), exact) and torch.equal(compiled(x), exact)
    assert copy is compiled._orig_mod
    assert not torch.equal(rounded, exact)
    assert torch.equal(model(x), rounded)  # it stays as it is


def test_a_forward_of_its_own_that_was_prepared_for_mixed_precision() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    model = torch.nn.Linear(1, 1)
    model.forward = plus_one
    try:
        Accelerator(mixed_precision="bf16", cpu=True).prepare(model)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert trip(model)(1) == 2


def test_a_compiled_model_that_was_prepared_for_mixed_precision() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    model, x = torch.nn.Linear(2, 1), torch.full((1, 2), 1 / 3)
    exact, compiled = model(x), torch.compile(model, backend="eager")
    try:
        Accelerator(mixed_precision="bf16", cpu=True).prepare(compiled)
        copy, inner = trip([compiled, model])
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert torch.equal(copy(x), exact) and torch.equal(inner(x), exact)


def test_a_model_that_keeps_a_former_forward_for_itself() -> None:
    """Under the name that Accelerate uses."""

    class TwiceAsMuch(torch.nn.Linear):
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            self._original_forward, self.forward = self.forward, self.twice

        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self._original_forward(x)

    net = TwiceAsMuch(2, 1)
    copy = trip(net)
    assert torch.equal(copy(torch.ones(1, 2)), net(torch.ones(1, 2)))


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_weights_that_are_computed(norm: str) -> None:
    wrap = getattr(torch.nn.utils.parametrizations, norm)
    model = torch.nn.Sequential(wrap(torch.nn.Linear(3, 2))).eval()
    before = digest(model)
    copy = trip(model)
    assert torch.equal(copy(torch.ones(1, 3)), model(torch.ones(1, 3)))
    assert [name for name, _ in copy.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert torch.nn.utils.parametrize.is_parametrized(copy[0])
    copy(torch.ones(1, 3)).sum().backward()
    assert digest(model) == before
    assert models.take_over(copy, trip(model), ["0.training"])
    torch.nn.utils.parametrize.remove_parametrizations(copy[0], "weight")
    assert type(copy[0]) is torch.nn.Linear


def test_a_module_that_has_a_class_of_its_own() -> None:
    # Its switches are what training scripts begin with: `torch.backends.cudnn.benchmark = True`.
    modules = [torch.backends.cudnn, torch.backends, torch.ops, torch.ops.aten, torch.classes]
    pickled = dump(modules)
    assert all(a is b for a, b in zip(load(pickled.stream), modules, strict=True))
    assert "torch.backends.cudnn" in pickled.modules


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "uint16"])
def test_a_tensor_of_a_newer_type(kind: str) -> None:
    whole = torch.arange(6.0).to(getattr(torch, kind))
    copy, part = trip([torch.nn.Parameter(whole, requires_grad=False), whole[2:4]])
    assert type(copy) is torch.nn.Parameter
    assert copy.dtype == part.dtype == whole.dtype
    assert copy.float().tolist() == [0, 1, 2, 3, 4, 5]
    copy.view(torch.uint8)[:] = 0
    assert part.float().tolist() == [0, 0]  # it shares the memory


def test_an_operator() -> None:
    add = torch.ops.aten.add
    assert trip(add) is add
    assert trip(add.Tensor) is add.Tensor


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_what_torchscript_has_made() -> None:
    function = torch.jit.trace(plus_one, torch.ones(1))
    copies = trip([function, torch.jit.trace(torch.nn.Linear(1, 2), torch.ones(1)), function])
    assert [copy(torch.ones(1)).numel() for copy in copies] == [1, 2, 1]
    assert copies[0] is copies[2]
    assert digest(copies) == digest(copies)


def test_an_exported_program() -> None:
    program = torch.export.export(torch.nn.Linear(1, 2), (torch.ones(3, 1),))
    copy = trip(program)
    assert torch.equal(copy.module()(torch.ones(3, 1)), program.module()(torch.ones(3, 1)))
    assert digest(copy) == digest(program)


def test_a_loader_whose_workers_run() -> None:
    loader = torch.utils.data.DataLoader(range(4), num_workers=1, persistent_workers=True)
    before = digest(loader)
    # What its workers would have it refer to, without the processes.
    loader._iterator = iter(torch.utils.data.DataLoader(range(4)))
    assert digest(loader) == before
    assert trip(loader)._iterator is None


def test_a_schedule_knows_that_its_optimizer_has_stepped(recwarn: pytest.WarningsRecorder) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer, schedule = trip(trip([optimizer, schedule]))
    assert schedule.optimizer is optimizer
    optimizer.step()
    copy = trip(schedule)
    copy.step()
    assert not recwarn.list
    assert copy.last_epoch == 1


def test_tensors_travel_whatever_the_default_device_is() -> None:
    tensor = torch.arange(5.0)
    torch.set_default_device("meta")  # as "cuda", which not every machine has
    try:
        copy = trip({"a": tensor, "b": tensor[1:3]})
    finally:
        torch.set_default_device(None)
    assert copy["a"].tolist() == [0, 1, 2, 3, 4]
    copy["b"] += 10
    assert copy["a"].tolist() == [0, 11, 12, 3, 4]


def test_only_what_was_on_a_gpu_asks_for_one_where_no_calls_are_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # To ask is enough to keep processes that are forked later from using it.
    asked: list[str] = []
    monkeypatch.setenv("COMPUTE_POOL", "{}")  # as on a rank
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(asked.append("it has")))
    trip(torch.arange(4.0))
    memory = torch.arange(4.0).numpy()
    run: Any = {"run": "a", "checkpoint": None, "serves": {"executor": "process"}}
    present_run.begin(run, 0, print)
    torch_objects._untyped_storage(memory, was_on_gpu=True)
    present_run.end(well=True)
    assert asked == []
    torch_objects._untyped_storage(memory, was_on_gpu=True)
    assert asked == ["it has"]


def test_what_was_on_a_gpu_is_on_the_processor_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPUTE_POOL", "{}")  # as on a rank
    memory = torch.arange(4.0).numpy()
    storage = torch_objects._untyped_storage(memory, was_on_gpu=True)
    wanted = "cuda" if torch.cuda.is_available() else "cpu"
    assert storage.device.type == wanted
    assert torch.tensor([]).set_(storage.cpu(), 0, (4,)).tolist() == [0, 1, 2, 3]


def test_an_optimizer_has_what_its_class_keeps_beside_its_state() -> None:
    class Counting(torch.optim.SGD):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            self.limits, self.on_step = {"steps": [1, 2.5, None]}, lambda: None

    weight = torch.nn.Parameter(torch.ones(2))
    counting = trip(Counting([weight], lr=0.1))
    assert counting.limits == {"steps": [1, 2.5, None]} and not hasattr(counting, "on_step")
    for steps in (0, 2):
        optimizer = torch.optim.LBFGS([weight], lr=0.1)
        for _ in range(steps):
            optimizer.step(partial(loss_of, optimizer, weight))
        there = trip(optimizer)
        [copy] = there.param_groups[0]["params"]
        for own, parameter in ((optimizer, weight), (there, copy)):
            own.step(partial(loss_of, own, parameter))
        assert torch.equal(copy, weight) and not torch.equal(copy, torch.ones(2))


def loss_of(optimizer: Any, weight: Any) -> Any:
    optimizer.zero_grad()
    loss = (weight - 3).square().sum()
    loss.backward()
    return loss
