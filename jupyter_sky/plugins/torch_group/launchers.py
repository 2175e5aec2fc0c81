"""Accelerate's launchers of processes, which the ranks of a cell have no need for.

``notebook_launcher(train, num_processes=2)`` starts processes that form a group of their own: the
ranks of each machine would train on all the data, without those of the others, or fail since all
take the same port.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.process.after_import import after_import

_PACKAGE = "accelerate"
_LAUNCHERS = ("notebook_launcher", "debug_launcher")


def install() -> None:
    """Refuse them in processes that are in a group, now or when Accelerate is imported."""
    after_import(f"{_PACKAGE}.launchers", _refuse)


def _refuse(module: ModuleType) -> None:
    for name in _LAUNCHERS:
        launcher = getattr(module, name, None)
        if launcher is None or hasattr(launcher, "__sky_group__"):
            continue
        refusing = _refusing(name, launcher)
        for place in (module, sys.modules.get(_PACKAGE)):
            if getattr(place, name, None) is launcher:
                setattr(place, name, refusing)


def _refusing(name: str, launcher: Any) -> Any:
    @functools.wraps(launcher)
    def launch(function: Any, *args: Any, **kwargs: Any) -> Any:
        distributed = sys.modules.get("torch.distributed")
        is_alone = kwargs.get("num_processes") == 1
        if distributed is None or not distributed.is_initialized() or is_alone:
            return launcher(function, *args, **kwargs)
        called = getattr(function, "__name__", "the function")
        raise UsageError(
            f"`{name}` starts processes, and the ranks of this cell are processes: call "
            f"`{called}(…)` itself, which each of the {distributed.get_world_size()} ranks does."
        )

    launch.__sky_group__ = True  # type: ignore[attr-defined]
    return launch
