"""Hooks of torch modules, which torch keeps in dictionaries, each under a number.

torch is never imported here.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from jupyter_sky.serialization.process.after_import import after_import

_FIRST_OF_RANKS = 1 << 60


def number_apart() -> None:
    """Have this rank number its hooks as neither the notebook nor another rank does.

    Every process counts from 0. A hook that a rank adds to the notebook's model would take the
    place of the notebook's hook, and the other way round once the model has come back.
    """
    after_import("torch.utils.hooks", _number_apart)


def _number_apart(module: Any) -> None:
    first = _FIRST_OF_RANKS + int.from_bytes(os.urandom(7), "big")
    module.RemovableHandle.next_id = max(module.RemovableHandle.next_id, first)


def of_module(module: Any) -> dict[str, dict[int, Any]]:
    """Return the hooks of a module, and what torch notes about them, by kind and number."""
    own = vars(module)
    return {kind: own[kind] for kind in _kinds()}


@functools.cache
def _kinds() -> list[str]:
    return [kind for kind in vars(sys.modules["torch"].nn.Module()) if "_hooks" in kind]


def name(prefix: str, kind: str, number: int) -> str:
    """Return the name of a hook among the contents of a model, which no attribute can have."""
    return f"{prefix} {kind} {number}"
