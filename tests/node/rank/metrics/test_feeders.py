"""Loggers of libraries feed the curves without a change in the cell."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_sky.node.rank.metrics import feeders
from jupyter_sky.transport.metrics import metric_log

Logged = list[tuple[Mapping[str, float], float | None]]


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logged]:
    """What was logged in this process, as if it were a rank."""
    found: Logged = []
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    metric_log.set_sink(lambda values, step: found.append((dict(values), step)) is None)
    feeders.install()
    yield found
    metric_log.set_sink(None)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("tensorboardX", "wandb"):
            del sys.modules[name]


_WRITER = """
class SummaryWriter:
    def __init__(self):
        self.kept = []
    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None,
                   display_name="", summary_description=""):
        self.kept.append((tag, scalar_value, global_step))
"""
_RUN = """
class Run:
    def log(self, data, step=None, commit=None):
        if "bad" in data:
            raise ValueError("the library's own error")
        return "logged"
"""


def _package(folder: Path, name: str, module: str, source: str) -> None:
    """Write a package with the names of one that is not installed here."""
    path = folder / name / module
    path.parent.mkdir(parents=True)
    path.write_text(source)
    for parent in path.parents:
        if parent == folder:
            break
        (parent / "__init__.py").touch()


def test_a_writer_of_tensorboard(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _package(tmp_path, "tensorboardX", "writer.py", _WRITER)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("tensorboardX.writer")
    writer = module.SummaryWriter()
    writer.add_scalar("train/loss", 0.5, 7)
    writer.add_scalar("train/loss", scalar_value=0.25, global_step=8, walltime=1.0)
    assert logged == [({"train/loss": 0.5}, 7), ({"train/loss": 0.25}, 8)]
    assert len(writer.kept) == 2
    assert "walltime" in inspect.signature(module.SummaryWriter.add_scalar).parameters
    assert "class SummaryWriter" in inspect.getsource(module)


def test_tensorboard_itself(logged: Logged, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    torch = pytest.importorskip("torch")
    feeders.install()
    module = importlib.import_module("torch.utils.tensorboard")
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    with module.SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", torch.tensor(0.5), 3)
        writer.add_scalar("loss", scalar_value=0.25, global_step=4)
        writer.add_scalars("accuracy", {"train": 0.75, "test": 0.5}, 4)
        writer.add_histogram("weights", torch.ones(3), 4)
    assert logged == [
        ({"loss": 0.5}, 3),
        ({"loss": 0.25}, 4),
        ({"accuracy/train": 0.75, "accuracy/test": 0.5}, 4),
    ]
    # And TensorBoard has what it would have without us.
    read = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(each.step, each.value) for each in read.Scalars("loss")] == [(3, 0.5), (4, 0.25)]


def test_what_wandb_logs(logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(tmp_path, "wandb", "sdk/wandb_run.py", _RUN)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = importlib.import_module("wandb.sdk.wandb_run").Run()
    assert run.log({"loss": 0.5, "note": "text", "picture": object()}, step=3) == "logged"
    assert run.log({"acc": 1}, commit=False) == "logged"
    with pytest.raises(ValueError, match="the library's own error"):
        run.log({"bad": 1})
    assert logged == [({"loss": 0.5}, 3), ({"acc": 1.0}, None), ({"bad": 1.0}, None)]


def test_the_trainer_of_transformers(logged: Logged) -> None:
    trainer_callback = pytest.importorskip("transformers.trainer_callback")
    feeders.install()  # it may have been imported before
    heard = []

    class Callback(trainer_callback.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            heard.append(logs)

    handler = trainer_callback.CallbackHandler([Callback()], None, None, None, None)
    state = SimpleNamespace(global_step=10)
    control = trainer_callback.TrainerControl()
    handler.on_log(None, state, control, {"loss": 0.75, "epoch": 0.5})
    assert logged == [({"loss": 0.75}, 10)]
    assert heard == [{"loss": 0.75, "epoch": 0.5}]


def test_lightning(logged: Logged, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    feeders.install()
    torch = pytest.importorskip("torch")

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            loss = self.layer(batch).sum()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    trainer = lightning.Trainer(
        max_steps=3,
        logger=False,
        log_every_n_steps=1,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(3, 1)))
    assert [(list(values), step) for values, step in logged] == [
        (["loss"], 0.0),
        (["loss"], 1.0),
        (["loss"], 2.0),
    ]
