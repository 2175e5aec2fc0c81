"""A notebook to pickle from, and a second one to load in."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest

from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.pickled import Pickled

Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs cells in a ``__main__`` of its own, and returns its names."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def run(cell: str) -> dict[str, Any]:
        exec(compile(cell, "<cell>", "exec", dont_inherit=True), vars(main))
        return vars(main)

    return run


class Elsewhere:
    """Another process, as far as its ``__main__`` and its classes go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = types.ModuleType("__main__")
        self._monkeypatch = monkeypatch

    def load(self, pickled: Pickled) -> Any:
        internals = cloudpickle.cloudpickle
        with self._monkeypatch.context() as patch:
            patch.setitem(sys.modules, "__main__", self.main)
            for name in ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID"):
                patch.setattr(internals, name, self._of(name))
            return pickling.load(pickled.stream, map(bytearray, pickled.buffers))

    def _of(self, name: str) -> Any:
        import weakref

        kind = weakref.WeakKeyDictionary if name.endswith("CLASS") else weakref.WeakValueDictionary
        return vars(self).setdefault(name, kind())


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    yield Elsewhere(monkeypatch)
