"""Scopes: what `DataFlow` knows of the names of a cell, a class body or a function body."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class Loop:
    """The names that are assigned at each `break` and `continue` of a loop."""

    breaks: list[set[str]] = field(default_factory=list)
    continues: list[set[str]] = field(default_factory=list)


@dataclass(slots=True)
class Scope:
    """The names of the cell itself, of a class body or of a function body."""

    kind: Literal["cell", "class", "function"]
    binds: set[str] = field(default_factory=set)
    declared_global: set[str] = field(default_factory=set)
    looked_up: set[str] = field(default_factory=set)
    # Looked up while not assigned here: these may belong to an enclosing scope.
    reads: set[str] = field(default_factory=set)
    # Declared `global`: these belong to the cell, whatever scopes lie between.
    global_reads: set[str] = field(default_factory=set)
    global_binds: set[str] = field(default_factory=set)
    # For each function or class that was not called yet, the names that a call may look up.
    not_called: dict[str, set[str]] = field(default_factory=dict)
    # The same for all functions and classes, including those that may have been called already.
    deferred_reads: dict[str, set[str]] = field(default_factory=dict)
    loops: list[Loop] = field(default_factory=list)
    # Variables of the comprehensions that are being walked: functions that are called there see the
    # cell's names, and not these.
    in_comprehension: set[str] = field(default_factory=set)
