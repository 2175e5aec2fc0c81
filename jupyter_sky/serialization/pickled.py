"""A pickled value, with what its sender has to know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jupyter_sky.serialization.cell_sources import Cells
from jupyter_sky.serialization.object_tokens.kinds import MAX_OBJECTS, is_mutable


@dataclass(frozen=True)
class Pickled:
    """A pickled value.

    Attributes
    ----------
    stream
        The pickle itself.
    buffers
        The contiguous memory of large arrays and tensors that the pickle refers to, in order.
    needs
        Names of ``__main__`` that functions and classes in the value use.
    modules
        Modules from which functions and classes in the value are imported.
    classes
        Classes of ``__main__`` that are pickled by reference, by identity.
    omitted
        For each object with cached properties, those whose values the pickle leaves out, in order.
    cells
        The notebook's cells that define functions in the value, for tracebacks.
    """

    stream: bytes
    buffers: tuple[memoryview, ...] = ()
    needs: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    classes: Mapping[str, type] = field(default_factory=dict)
    cells: Cells = field(default_factory=dict)
    omitted: Sequence[Mapping[str, object]] = ()
    _pickler: Any = field(default=None, repr=False, compare=False)
    _value: Any = field(default=None, repr=False, compare=False)

    @cached_property
    def memo(self) -> dict[int, tuple[int, Any]]:
        """Every object in the value by identity, with its index in the pickle's memo."""
        return self._pickler.memo.copy() if self._pickler else {}

    @property
    def plain(self) -> dict[int, Any]:
        """The plain objects that it refers to (see `LinkingPickler`), by token."""
        found: dict[int, Any] = self._pickler.plain
        return found

    @cached_property
    def shared(self) -> dict[int, tuple[int, Any]]:
        """The mutable objects in the value, which other values may share, as in ``memo``."""
        memo = self.memo
        if len(memo) > MAX_OBJECTS:  # bulk data: count only the value itself
            memo = {id(self._value): memo[id(self._value)]} if id(self._value) in memo else {}
        return {key: entry for key, entry in memo.items() if is_mutable(entry[1])}
