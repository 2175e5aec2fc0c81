"""Which values are models, optimizers and learning rate schedules of torch.

torch is never imported here: where it is not loaded, nothing is one of these.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_sky.serialization.models import keras_models


def is_module(value: Any) -> bool:
    """Return whether a value is a torch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def has_modules(value: Any) -> bool:
    """Return whether a value is a torch module that is looked into; one of Keras is a whole."""
    return is_module(value) and not keras_models.is_saved(value)


def is_optimizer(value: Any) -> bool:
    """Return whether a value is a torch optimizer."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.optim.Optimizer)


def is_schedule(value: Any) -> bool:
    """Return whether a value is a torch learning rate schedule."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    kinds = torch.optim.lr_scheduler
    return isinstance(value, (kinds.LRScheduler, kinds.ReduceLROnPlateau))


KINDS = (has_modules, is_optimizer, is_schedule)
"""What tells a model, an optimizer and a schedule; each may refer to those before it."""


def is_any(value: Any) -> bool:
    """Return whether a value is a model, an optimizer or a schedule."""
    return any(is_kind(value) for is_kind in KINDS)
