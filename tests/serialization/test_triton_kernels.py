"""Kernels of Triton travel; a stand-in has what keeps Triton's own from being pickled."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

from jupyter_sky.serialization.pickling import dump

CELL = """
import triton
size = 3
@triton.jit(noinline=True)
def kernel(x): return x * size
"""


class JITFunction:
    def __init__(self, fn: Any, **options: Any) -> None:
        self.fn, self.launch_metadata, self._repr = fn, None, options.pop("repr", None)
        self.noinline = options.pop("noinline", None)
        self.rest = options
        self._hash_lock = threading.RLock()


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = types.ModuleType("triton")
    made.jit = lambda **options: lambda fn: JITFunction(fn, **options)
    monkeypatch.setitem(sys.modules, "triton", made)
    monkeypatch.setattr(JITFunction, "__module__", "triton.runtime.jit")


def test_a_kernel_of_the_notebook_is_made_anew(notebook: Any, elsewhere: Any) -> None:
    main = notebook(CELL)
    pickled = dump(main["kernel"])
    assert pickled.needs == {"size"}
    kernel = elsewhere.load(pickled)
    assert isinstance(kernel, JITFunction)
    elsewhere.main.size = 5
    assert (kernel.fn(2), kernel.noinline, kernel.rest) == (10, True, {})
    main["kernel"].hash = "compiled"
    assert dump(main["kernel"]).stream == pickled.stream


def test_a_kernel_of_a_module_is_imported(notebook: Any, monkeypatch: Any) -> None:
    module: Any = types.ModuleType("kernels")
    monkeypatch.setitem(sys.modules, "kernels", module)
    exec(CELL, vars(module))
    stream = dump(module.kernel).stream
    assert b"kernels" in stream
    assert b"noinline" not in stream
