"""Kernels of Triton that the notebook has defined.

A kernel has a lock and what was compiled for the notebook's GPU. The receiver makes it anew from
its function, whose source it has (`cell_sources`).
"""

from __future__ import annotations

import importlib
import sys
from types import FunctionType
from typing import Any

_LISTS = ("do_not_specialize", "do_not_specialize_on_alignment")
_OPTIONS = ("version", *_LISTS, "debug", "noinline", "launch_metadata")


def reduce(kernel: Any) -> Any:
    """Return what ``kernel.__reduce__`` should, for what ``triton.jit`` has made.

    Parameters
    ----------
    kernel
        Any object of Triton's module for that.
    """
    function = getattr(kernel, "fn", None)
    if not isinstance(function, FunctionType) or not hasattr(kernel, "launch_metadata"):
        return NotImplemented
    module = sys.modules.get(function.__module__)
    if function.__module__ != "__main__" and getattr(module, function.__name__, None) is kernel:
        return getattr, (module, function.__name__)
    options = {name: getattr(kernel, name, None) for name in _OPTIONS}
    return _made, (function, {**options, "repr": getattr(kernel, "_repr", None)})


def _made(function: FunctionType, options: dict[str, Any]) -> Any:
    triton = importlib.import_module("triton")
    return triton.jit(**{name: each for name, each in options.items() if each})(function)
