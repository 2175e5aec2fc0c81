"""What tests need that may not be installed."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from typing import Any

import pytest


def skip_without(*modules: str) -> None:
    """Skip a test, or the file that calls this, where a module is not installed.

    Unlike `pytest.importorskip` it imports nothing: a kernel or a server needs the module, and each
    process that runs tests would spend seconds on it.
    """
    if missing := [module for module in modules if importlib.util.find_spec(module) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)


def on_first_use(module: str) -> Any:
    """Return a module that is imported when something of it is used; skip where it is missing."""
    skip_without(module)
    return _OnFirstUse(module)


class _OnFirstUse:
    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what pytest asks of all that it finds in a file
            raise AttributeError(name)
        if self._module not in sys.modules:
            importlib.import_module(self._module)
            gc.freeze()  # as what is collected: see `pytest_collection`
        return getattr(sys.modules[self._module], name)
