"""What tests need that may not be installed."""

from __future__ import annotations

import importlib.util

import pytest


def skip_without(*modules: str) -> None:
    """Skip a test, or the file that calls this, where a module is not installed.

    Unlike `pytest.importorskip` it imports nothing: a kernel or a server needs the module, and each
    process that runs tests would spend seconds on it.
    """
    if missing := [module for module in modules if importlib.util.find_spec(module) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)
