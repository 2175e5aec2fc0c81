"""Scopes: what `DataFlow` knows of the names of a cell, a class body or a function body."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class Loop:
    """The names assigned where a `break` or a `continue` leaves the body."""

    breaks: list[set[str]] = field(default_factory=list)
    continues: list[set[str]] = field(default_factory=list)


@dataclass(slots=True)
class Scope:
    """The names of the cell itself, of a class body or of a function body."""

    kind: Literal["cell", "class", "function"]
    binds: set[str] = field(default_factory=set)
    declared_global: set[str] = field(default_factory=set)
    looked_up: set[str] = field(default_factory=set)
    # Looked up while not assigned here: they may belong to an enclosing scope.
    reads: set[str] = field(default_factory=set)
    # By a `global` statement they belong to the cell, whatever scopes lie between.
    global_reads: set[str] = field(default_factory=set)
    global_binds: set[str] = field(default_factory=set)
    # What a call of the function or class of this name may look up, while it was not called yet.
    not_called: dict[str, set[str]] = field(default_factory=dict)
    # The same for all functions and classes, also for those that may have been called already.
    deferred_reads: dict[str, set[str]] = field(default_factory=dict)
    loops: list[Loop] = field(default_factory=list)
