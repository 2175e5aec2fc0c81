"""Loggers of libraries that feed the curves: what they log also goes to `sky.log`.

Each is patched when the user's code imports it; nothing is imported here. The library's own
handling of a metric stays the same, and an error of ours never reaches the user.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from jupyter_sky.serialization.process.after_import import after_import
from jupyter_sky.transport.metrics.metric_log import log_some

Feed = Callable[..., None]

_inside = threading.local()


def _tensorboard(
    writer: Any, tag: Any, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any
) -> None:
    log_some({tag: scalar_value}, global_step)


def _tensorboards(
    writer: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *_: Any, **__: Any
) -> None:
    log_some({f"{main_tag}/{tag}": each for tag, each in tag_scalar_dict.items()}, global_step)


def _trainer(
    handler: Any, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any
) -> None:
    if "train_runtime" not in logs:  # a summary at the end is not a point of a curve
        log_some(_without_steps(logs), state.global_step)


def _lightning(connector: Any, metrics: Mapping[str, Any], step: Any = None) -> None:
    if step is None:
        step = metrics.get("step", connector.trainer.fit_loop.epoch_loop._batches_that_stepped)
    log_some(_without_steps(metrics), step)


def _fabric(fabric: Any, metrics: Mapping[str, Any], step: Any = None) -> None:
    log_some(metrics, step)


def _wandb(run: Any, data: Mapping[str, Any], step: Any = None, *_: Any, **__: Any) -> None:
    log_some(data, step)


def _without_steps(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in figures.items() if name not in ("epoch", "step")}


_CONNECTOR = "trainer.connectors.logger_connector.logger_connector"
_WRITER = {"add_scalar": _tensorboard, "add_scalars": _tensorboards}
_FEEDERS: Mapping[str, tuple[str, Mapping[str, Feed]]] = {
    "torch.utils.tensorboard.writer": ("SummaryWriter", _WRITER),
    "tensorboardX.writer": ("SummaryWriter", _WRITER),
    "transformers.trainer_callback": ("CallbackHandler", {"on_log": _trainer}),
    f"lightning.pytorch.{_CONNECTOR}": ("_LoggerConnector", {"log_metrics": _lightning}),
    f"pytorch_lightning.{_CONNECTOR}": ("_LoggerConnector", {"log_metrics": _lightning}),
    "lightning.fabric.fabric": ("Fabric", {"log_dict": _fabric}),
    "lightning_fabric.fabric": ("Fabric", {"log_dict": _fabric}),
    "wandb.sdk.wandb_run": ("Run", {"log": _wandb}),
}
"""By module: the class in it, its methods that log, and what takes their arguments."""


def install() -> None:
    """Let these libraries feed the curves of this process."""
    for name in _FEEDERS:
        after_import(name, _change)


def _change(module: ModuleType) -> None:
    kind, methods = _FEEDERS[module.__name__]
    for method, feed in methods.items():
        _change_method(getattr(module, kind, None), method, feed)


def _change_method(owner: Any, method: str, feed: Feed) -> None:
    original = getattr(owner, method, None)
    if owner is None or original is None or hasattr(original, "__sky_feeds__"):
        return

    @functools.wraps(original)
    def logs(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "one", False):
            # A logger that calls another one, as Lightning's does with TensorBoard's, logs only
            # once.
            return original(*args, **kwargs)
        _inside.one = True
        try:
            with contextlib.suppress(Exception):  # another version, which names it differently
                feed(*args, **kwargs)
            return original(*args, **kwargs)
        finally:
            _inside.one = False

    logs.__sky_feeds__ = True  # type: ignore[attr-defined]
    setattr(owner, method, logs)
