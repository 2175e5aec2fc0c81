"""What a rank has under a name, and how a run may change it, as plain data."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.serialization.changes.container_changes import Contents
from jupyter_sky.serialization.changes.model_changes import HeldModels
from jupyter_sky.serialization.object_tokens.sent import SentObjects

BEFORE_ALL = -1
"""The number that stands for all runs of other kernels."""


@dataclass(frozen=True)
class Turn:
    """When a run has its turn.

    Attributes
    ----------
    number
        The number of the run: those before it count, and later ones do not.
    time
        When it was asked for: what the notebook has assigned since does not count.
    """

    number: int
    time: int


NOW = Turn(sys.maxsize, sys.maxsize)
"""The turn of a run that is asked for now, behind all that are on their way."""

BEFORE_RUNS = Turn(BEFORE_ALL, sys.maxsize)
"""The turn of one that overtakes all that are on their way."""

_CHANGED = "changed"
"""Stands for a digest, which no value has."""


@dataclass(frozen=True, kw_only=True)
class RankValue:
    """What a rank has under a name: the notebook's value, or one of its own.

    Attributes
    ----------
    digest
        The digest of the notebook's value; ``None`` if it is the rank's own, or outdated.
    run
        Number of the run that the value was sent for, or that bound it.
    replaces
        For a value of the rank's own, the identity of the notebook's value that it replaced, or 0
        if there was none, or that of what an earlier run has given for the name since; ``None`` if
        the notebook has assigned the name since.
    models, contents
        The models and optimizers of the notebook's value, and what was in its containers, if the
        rank has it.
    assigned, before
        When the notebook assigned the name since, for the first time, or bound it to what an
        earlier run gave, and what was known before that: a run that was asked for before it reads
        what ranks had then.
    """

    run: int
    digest: str | None = None
    replaces: int | None = None
    models: HeldModels | None = None
    contents: Contents | None = None
    assigned: int = 0
    before: RankValue | None = None

    @classmethod
    def of(cls, item: NamespaceItem, run: int, sent_objects: SentObjects) -> RankValue:
        """Return what ranks have of the notebook's value after a run."""
        contents = item.known_contents(sent_objects)
        return cls(digest=item.digest, run=run, models=item.models, contents=contents)

    @property
    def is_notebooks(self) -> bool:
        """Whether it is the notebook's value, of now or before."""
        return self.digest is not None

    @property
    def is_ranks_own(self) -> bool:
        """Whether the rank has bound it itself."""
        return self.replaces is not None

    @property
    def is_outdated(self) -> bool:
        """Whether the notebook has assigned the name since, so that this value does not count."""
        return self.digest is None and self.replaces is None

    def as_changed(
        self, *, models: HeldModels | None = None, contents: Contents | None = None
    ) -> RankValue:
        """Return it as one that is not what the notebook has, so that this is sent again.

        Parameters
        ----------
        models, contents
            What is known of them then, where it is something else than now.
        """
        return replace(
            self,
            digest=_CHANGED,
            models=self.models if models is None else models,
            contents=self.contents if contents is None else contents,
        )

    def as_assigned(self, time: int) -> RankValue:
        """Return it as it is once the notebook has assigned the name: only its parts count yet."""
        # What else there was beside models does not.
        models = self.models and replace(self.models, rest=self.models.rest and "")
        since, before = (self.assigned, self.before) if self.is_outdated else (time, self)
        return RankValue(
            run=self.run, models=models, contents=self.contents, assigned=since, before=before
        )

    def as_returned(self, run: int, identity: int, time: int) -> RankValue:
        """Return it as it is once the notebook has bound the name to what a run gave.

        What a later run has bound on the rank stays there: nothing was assigned in the notebook.
        """
        if self.run <= run or not self.is_ranks_own:
            return self
        return replace(self, replaces=identity, assigned=time, before=self)

    def at(self, time: int) -> RankValue:
        """Return it as it was at that time, as far as the notebook's assignments are concerned."""
        return self.before.at(time) if self.before and self.assigned > time else self


@dataclass(slots=True)
class Expected:
    """What a rank will have after a run that it has not reported yet; ranks may share this object.

    Attributes
    ----------
    delivered
        What is sent for the run.
    bound
        What the run binds, if it ends without error.
    """

    delivered: dict[str, RankValue] = field(default_factory=dict)
    bound: dict[str, RankValue] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RunEffects:
    """How a run may change the names of its ranks.

    Attributes
    ----------
    number
        Runs are asked for, and take their turns, in the order of their numbers.
    cell
        The names that its cell reads and binds.
    identities
        The identities of the notebook's values when the run was asked for, by name.
    time
        How many runs had been asked for and how often names had been assigned by then, in all.
    assigned
        When the notebook assigned names since, each for the first time.
    returned
        What the notebook has bound names to since that other runs gave, one after the other: the
        number of the run, the identity of what it gave, and when.
    expected
        What is expected on ranks that have not reported the run yet.
    starts
        How often each rank had been replaced by a new process when the run was sent.
    left_out, left_bound
        Names of which the runs before decide what ranks have then: whether they are sent, and
        whether they have to be unbound, is known only when the run has its turn. Empty from then
        on.
    """

    number: int = BEFORE_ALL
    cell: CellNames = field(default_factory=CellNames)
    identities: Mapping[str, int] = field(default_factory=dict)
    time: int = 0
    assigned: dict[str, int] = field(default_factory=dict)
    returned: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    expected: dict[int, Expected] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    left_bound: set[str] = field(default_factory=set)

    @property
    def turn(self) -> Turn:
        """When the run has its turn."""
        return Turn(self.number, self.time)

    @cached_property
    def replaces(self) -> Mapping[str, int]:
        """The identities of the values of names that the run may bind but does not read."""
        names = self.cell.writes - self.cell.reads
        return {name: each for name in names if (each := self.identities.get(name, 0))}

    def binding(self, name: str) -> RankValue:
        """Return what a rank has under a name when the run has bound it."""
        value = RankValue(run=self.number, replaces=self.identities.get(name, 0))
        for each in self.returned.get(name, ()):
            value = value.as_returned(*each)
        return value


def undecided(runs: Iterable[RunEffects], ranks: Collection[int]) -> set[str]:
    """Return names of which only the end of runs tells what ranks have.

    A run may bind them, as in a loop or a branch, or is itself sent them at its turn.

    Parameters
    ----------
    runs
        The runs on their way, in order.
    ranks
        The ranks.
    """
    found: set[str] = set()
    for run in runs:
        if not run.expected.keys().isdisjoint(ranks):
            found |= run.left_out | run.left_bound | (run.cell.writes - run.cell.always_bound)
            found -= run.assigned.keys()
            if run.expected.keys() >= {*ranks}:
                found -= run.cell.always_bound
    return found
