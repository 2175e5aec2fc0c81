"""What ranks have of the notebook's names when a run has its turn.

A new update is for a run behind all that are on their way, so it counts on what these deliver and
bind. An update that is refreshed when its run has its turn counts only on the runs before that one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from types import ModuleType
from typing import Any

from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.cluster.namespace.rank_values import NOW, RankValue, RunEffects, Turn, undecided
from jupyter_sky.serialization.module_reference import ModuleReference
from jupyter_sky.serialization.object_tokens.kinds import is_mutable

_NOTHING: Mapping[str, RankValue] = {}


class StateAtTurn:
    """Tells what each rank will have under each name, or under the key of an item without a name.

    It belongs to `RemoteState`, and tells what that knows when it is asked.

    Parameters
    ----------
    turn
        When the run has its turn.
    confirmed
        What each rank had after the last run that it reported, by name or key.
    on_their_way
        The runs that are on their way, by number.
    starts
        How often each rank was replaced by a new process.
    to_delete
        Names that the notebook has deleted, and that a rank was not told to unbind.
    assigned
        When the notebook assigned names last.
    """

    def __init__(
        self,
        turn: Turn,
        confirmed: Mapping[int, Mapping[str, RankValue]],
        on_their_way: Mapping[int, RunEffects],
        starts: Mapping[int, int],
        to_delete: Mapping[int, Set[str]],
        assigned: Mapping[str, int],
    ) -> None:
        self._turn = turn
        self._confirmed = confirmed
        self._on_their_way = on_their_way
        self._starts = starts
        self._to_delete = to_delete
        self._assigned = assigned

    def ranks(self) -> set[int]:
        """Return the ranks that have any values, or will have some."""
        return set(self._confirmed).union(*(each.expected for each in self._on_their_way.values()))

    def value(self, rank: int, key: str) -> RankValue | None:
        """Return what a rank will have under a name or key."""
        found = self._confirmed.get(rank, _NOTHING).get(key)
        for expected in self._expected_of(rank) if self._on_their_way else ():
            found = expected.get(key, found)
        return found.at(self._turn.time) if found and found.before else found

    def keys(self, rank: int) -> set[str]:
        """Return the names and keys of values that a rank will have and that are not outdated."""
        return {key for key, value in self.values(rank).items() if not value.is_outdated}

    def values(self, rank: int) -> dict[str, RankValue]:
        """Return what a rank will have, by name or key."""
        values = {**self._confirmed.get(rank, {})}
        for expected in self._expected_of(rank):
            values.update(expected)
        if self._turn is NOW:
            return values
        return {key: value.at(self._turn.time) for key, value in values.items()}

    def names_kept(self, rank: int) -> set[str]:
        """Return names under which a rank has the notebook's value, sent or given back.

        The rank may have changed it in place since.
        """
        return {key for key, it in self.values(rank).items() if it.is_notebooks and it.run >= 0}

    def names_anywhere(self) -> set[str]:
        """Return the names and keys that any rank has."""
        return set().union(*map(self.keys, self.ranks()))

    def names_on(self, ranks: Sequence[int]) -> set[str]:
        """Return the names and keys that all of these ranks have."""
        return set.intersection(*(self.keys(rank) for rank in ranks))

    def lacks(self, rank: int, item: NamespaceItem) -> bool:
        """Return whether a rank needs an item: it has another value, or none."""
        value = self.value(rank, item.key)
        if value is None:
            return True
        if value.replaces is not None:
            return value.replaces != item.identity
        return value.digest != item.digest

    def began_empty(self, rank: int) -> bool:
        """Return whether a rank has a process that began after those of the cluster's start."""
        return rank in self._starts

    def may_differ(self, rank: int, item: NamespaceItem) -> bool:
        """Return whether a rank has bound a name itself, or may have changed its value in place."""
        value = self.value(rank, item.key)
        if value is None or isinstance(item.value, (ModuleType, ModuleReference)):
            return False
        if self.lacks(rank, item):  # then it may be changed part by part
            return not value.is_outdated and bool(value.contents or value.models)
        return value.is_ranks_own or is_mutable(item.value)

    def has_rebound(self, rank: int, name: str, value: Any) -> bool:
        """Return whether a rank has replaced this value of a name by one of its own."""
        has = self.value(rank, name)
        return has is not None and has.replaces == id(value)

    def has_former(self, rank: int, name: str) -> bool:
        """Return whether a rank has a value of the notebook's under a name, as it was once."""
        has = self.value(rank, name)
        return has is not None and has.is_notebooks

    def deleted(self, rank: int) -> Collection[str]:
        """Return names that the notebook has deleted, and that a rank was not told to unbind."""
        return self._to_delete.get(rank, ())

    def undecided(self, ranks: Collection[int]) -> set[str]:
        """Return names of which only the end of runs on their way tells what ranks have."""
        runs = sorted(self._on_their_way.items())
        return undecided((run for number, run in runs if number < self._turn.number), ranks)

    def assigned_since(self, rank: int, names: Iterable[str]) -> set[str]:
        """Return names that the notebook has assigned and whose present value a rank lacks."""
        there = self.keys(rank)
        return {name for name in names if name in self._assigned and name not in there}

    def _expected_of(self, rank: int) -> list[Mapping[str, RankValue]]:
        found: list[Mapping[str, RankValue]] = []
        for number, effects in sorted(self._on_their_way.items()):
            if (expected := effects.expected.get(rank)) is None:
                continue
            if number <= self._turn.number:
                found.append(expected.delivered)
            if number < self._turn.number:
                found.append(expected.bound)
        return found
