"""What Lightning finds on a rank: its place in the process group, and no need for processes.

Lightning computes the rank of a process from the numbers of its node and of its GPU, and on Slurm
takes that of the job's step. Here, each rank has a GPU of its own, which is its first, and a step
has all ranks of its node: all would be the same one, and train on the same data. With a strategy
for notebooks, like ``ddp_notebook``, it forks; the forks would wait for each other in this group.
Without a strategy, it takes one of the GPUs that it sees for itself, where ``torchrun`` shows each
process all GPUs of the node: a `Trainer` that trains on all of them there would train alone here.

It is patched where the user's code imports it, and only concerns processes in a group.
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import cell_sources
from jupyter_sky.serialization.process.after_import import after_import
from jupyter_sky.transport import present_run

_FABRIC = ("lightning.fabric", "lightning_fabric")
_TRAINERS = ("lightning.pytorch", "pytorch_lightning")


def install() -> None:
    """Let Lightning use the group of this process, now or when it is imported."""
    for root in _FABRIC:
        after_import(f"{root}.plugins.environments.lightning", _tell_place)
        after_import(f"{root}.plugins.environments.slurm", _hide_slurm)
    for root in (*_FABRIC, *_TRAINERS):
        after_import(f"{root}.strategies.launchers.multiprocessing", _refuse_processes)
    for root in _TRAINERS:
        after_import(f"{root}.strategies.single_device", _warn_alone)


def _tell_place(module: ModuleType) -> None:
    environment: Any = module.LightningEnvironment
    set_rank, set_size = environment.set_global_rank, environment.set_world_size

    def set_global_rank(self: Any, rank: int) -> None:
        group = _group()
        set_rank(self, rank if group is None else group.rank())

    def set_world_size(self: Any, size: int) -> None:
        group = _group()
        if group is not None and size != group.size():
            raise UsageError(
                f"Lightning counts {size} processes, and there are {group.size()} ranks: "
                f"{_suggestion(group)}."
            )
        set_size(self, size)

    _patch(environment, set_global_rank)
    _patch(environment, set_world_size)


def _hide_slurm(module: ModuleType) -> None:
    environment: Any = module.SLURMEnvironment
    is_there = environment.detect

    def detect() -> bool:
        return _group() is None and bool(is_there())

    _patch(environment, staticmethod(detect))


def _refuse_processes(module: ModuleType) -> None:
    launcher: Any = module._MultiProcessingLauncher
    start = launcher.launch

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        group = _group()
        if group is not None:
            raise UsageError(
                "the strategies `ddp_notebook`, `ddp_fork` and `ddp_spawn` start processes, and "
                f"the ranks of this cell are processes: {_suggestion(group)}."
            )
        return start(self, *args, **kwargs)

    _patch(launcher, launch)


def _warn_alone(module: ModuleType) -> None:
    strategy: Any = module.SingleDeviceStrategy
    start = strategy.setup

    def setup(self: Any, trainer: Any) -> None:
        group, ranks = _group(), present_run.ranks()
        if group is not None and trainer.training and len(ranks) > 1 and group.rank() == ranks[0]:
            _warn(f"this Trainer trains on each rank alone: for all together, {_suggestion(group)}")
        start(self, trainer)

    _patch(strategy, setup)


def _warn(text: str) -> None:
    """Warn of the line in the user's cell that led here."""
    frame = cell_sources.running_frame()
    file, line = (frame.f_code.co_filename, frame.f_lineno) if frame else (__file__, 0)
    warnings.warn_explicit(text, UserWarning, file, line)


def _suggestion(group: Any) -> str:
    return f'type `strategy="ddp", num_nodes={group.size()}, devices=1`'


def _patch(owner: Any, method: Any) -> None:
    """Replace a method, once for each process: each group calls `install`."""
    name = method.__name__
    if not hasattr(getattr(owner, name), "__sky_group__"):
        getattr(method, "__func__", method).__sky_group__ = True
        setattr(owner, name, method)


def _group() -> Any:
    """Return the group that this process is in."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return None
    return distributed.group.WORLD
