"""What a rank has under a name, and what a run may do to it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.serialization.model_changes import KnownModel

BEFORE_ALL = -1
"""Number of runs that were asked for by another kernel."""


@dataclass(frozen=True)
class RankValue:
    """What a rank has under a name.

    Attributes
    ----------
    digest
        The digest of the notebook's value, if the rank has that; ``None`` for one of its own.
    run
        Number of the run that it came with, or that bound it.
    replaces
        Identity of the notebook's value in whose place the rank has put its own; 0 is for none.
    model
        The notebook's value, if the rank has that and it is a model.
    """

    digest: str | None
    run: int
    replaces: int | None = None
    model: KnownModel | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether the notebook has assigned the name since: it does not matter what this is."""
        return self.digest is None and self.replaces is None


@dataclass(slots=True)
class Expected:
    """What a rank will have after a run that it has not reported yet; ranks may have it in common.

    Attributes
    ----------
    delivered
        What it is sent for the run.
    bound
        What the run binds if it comes to its end.
    """

    delivered: dict[str, RankValue] = field(default_factory=dict)
    bound: dict[str, RankValue] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RunEffects:
    """What a run may do to the names of its ranks.

    Attributes
    ----------
    number
        Runs are asked for, and take their turns, in this order.
    cell
        The names that it binds.
    identities
        The notebook's values when the run was asked for, by identity.
    time
        When that was, in assignments.
    expected
        What is expected of it on the ranks that have not reported it.
    starts
        Which process each rank was when it was sent, counted from its first.
    """

    number: int = BEFORE_ALL
    cell: CellNames = field(default_factory=lambda: CellNames(frozenset(), frozenset()))
    identities: Mapping[str, int] = field(default_factory=dict)
    time: int = 0
    expected: dict[int, Expected] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
