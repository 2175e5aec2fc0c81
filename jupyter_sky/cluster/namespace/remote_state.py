"""What ranks have of the notebook's names, as far as the notebook knows.

Two things are known of each rank: what it had under each name after the last run that it reported
(the *confirmed* values), and what the runs that are on their way will deliver and bind (the
*expected* values). What both make of the names when a run has its turn, `StateAtTurn` tells.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.analysis.namespace_diff import identities
from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.cluster.namespace.rank_values import (
    BEFORE_ALL,
    NOW,
    Expected,
    RankValue,
    RunEffects,
    Turn,
)
from jupyter_sky.cluster.namespace.state_at_turn import StateAtTurn
from jupyter_sky.serialization.changes.container_changes import Contents


class RemoteState:
    """Keeps what each rank has under each name, or under the key of an item without a name.

    It belongs to `NamespaceSync`, whose lock has to be held.

    Attributes
    ----------
    now
        What ranks will have for a run that is asked for now.
    """

    def __init__(self) -> None:
        self._confirmed: dict[int, dict[str, RankValue]] = {}
        self._on_their_way: dict[int, RunEffects] = {}
        self._starts: dict[int, int] = {}
        self._to_delete: dict[int, set[str]] = {}
        self._assigned: dict[str, int] = {}
        self._time = 0
        self._numbers = itertools.count()
        self.now = self.at(NOW)

    def at(self, turn: Turn) -> StateAtTurn:
        """Return what ranks will have when a run has its turn."""
        return StateAtTurn(
            turn, self._confirmed, self._on_their_way, self._starts, self._to_delete, self._assigned
        )

    # Runs

    def foresee(self, cell: CellNames, namespace: Mapping[str, Any]) -> RunEffects:
        """Return how the run of a cell may change names."""
        self._time += 1
        return RunEffects(next(self._numbers), cell, identities(namespace), self._time)

    def expect(
        self,
        effects: RunEffects,
        ranks: Iterable[int],
        sent: Mapping[int, Mapping[str, RankValue]],
    ) -> None:
        """Record that a run is on its way; once more when its update was refreshed.

        Parameters
        ----------
        effects
            How the run may change names.
        ranks
            Its ranks.
        sent
            What each of them is sent, by name or key.
        """
        expected = effects.expected
        bound = {name: self._binding(name, effects) for name in effects.cell.always_bound}
        alike = Expected({}, bound)  # shared by the ranks that are sent nothing, mostly all
        for rank in ranks:
            effects.starts[rank] = self._starts.get(rank, 0)
            delivered, before = sent.get(rank, {}), expected.get(rank)
            if not delivered and not (before and before.delivered):
                # Of calls, which write none, there may be thousands.
                if effects.cell.writes or effects.left_out or effects.left_bound:
                    expected[rank] = alike
                else:
                    self._stop_expecting(effects, rank)
                continue
            before = before or Expected()
            expected[rank] = Expected({**before.delivered, **delivered}, before.bound | bound)
        if effects.expected:
            self._on_their_way[effects.number] = effects

    def ended(
        self, effects: RunEffects, bound: Mapping[int, Mapping[str, bool]], well: bool
    ) -> None:
        """Record what a run did on ranks.

        Parameters
        ----------
        effects
            How the run could change names.
        bound
            The names of each rank, each with whether it holds another object than before.
        well
            Whether the run ended without error.
        """
        for rank, names in bound.items():
            self._ended(effects, rank, names, well)

    def _ended(self, effects: RunEffects, rank: int, bound: Mapping[str, bool], well: bool) -> None:
        expected = self._stop_expecting(effects, rank)
        if self.is_gone(effects, rank):
            return  # what the run did is gone with the process
        confirmed = self._confirmed.setdefault(rank, {})
        confirmed.update(expected.delivered if expected else {})
        names = {name for name, other in bound.items() if other} if bound else set()
        if well and effects.cell.always_bound:
            reads = effects.cell.reads  # in `x += 1`, a list or an array is the same as before
            names |= {
                name
                for name in effects.cell.always_bound
                if bound.get(name, True) or name not in reads
            }
        for name in names:
            confirmed[name] = self._binding(name, effects)

    def cancel(self, effects: RunEffects, ranks: Collection[int] | None = None) -> None:
        """Record that a run will not happen on (some) ranks that have not reported it."""
        for rank in list(effects.expected if ranks is None else ranks):
            self._stop_expecting(effects, rank)

    def is_gone(self, effects: RunEffects, rank: int) -> bool:
        """Return whether a rank has a new process since a run was sent to it."""
        now = self._starts.get(rank, 0)
        return effects.starts.get(rank, now) != now

    def unbound(self, names: Mapping[int, Iterable[str]]) -> None:
        """Record that ranks were told to unbind names."""
        for rank, each in names.items() if self._to_delete else ():
            self._to_delete.get(rank, set()).difference_update(each)

    def not_unbound(self, names: Mapping[int, Iterable[str]], effects: RunEffects) -> None:
        """Record that ranks were not told to unbind names, because the run did not happen."""
        for rank, each in names.items():
            self._to_delete.setdefault(rank, set()).update(
                name for name in each if not self.is_assigned_since(name, effects)
            )

    def _stop_expecting(self, effects: RunEffects, rank: int) -> Expected | None:
        expected = effects.expected.pop(rank, None)
        if not effects.expected:
            self._on_their_way.pop(effects.number, None)
        return expected

    def _binding(self, name: str, effects: RunEffects) -> RankValue:
        """Return what a rank has under a name when a run has bound it."""
        value = effects.binding(name)
        if self.is_assigned_since(name, effects):
            return value.as_assigned(effects.assigned.get(name, self._assigned[name]))
        return value

    def is_assigned_since(self, name: str, effects: RunEffects) -> bool:
        """Return whether the notebook has assigned a name since a run was asked for."""
        return self._assigned.get(name, 0) > effects.time

    # Ranks

    def lose(self, effects: RunEffects, rank: int, keys: Iterable[str]) -> None:
        """Record that a rank did not bind something that it was sent for a run."""
        expected = effects.expected.get(rank)
        for key in keys:
            self._confirmed.get(rank, {}).pop(key, None)
            if expected:  # the run goes on
                expected.delivered.pop(key, None)

    def remember(self, rank: int, digests: Mapping[str, str]) -> None:
        """Record what a rank has, as reported by its agent."""
        values = {key: RankValue(run=BEFORE_ALL, digest=each) for key, each in digests.items()}
        self._confirmed[rank] = values

    def forget(self, rank: int) -> None:
        """Record that a rank has an empty namespace now."""
        self._starts[rank] = self._starts.get(rank, 0) + 1
        self._confirmed.pop(rank, None)
        self._to_delete.pop(rank, None)
        for effects in list(self._on_their_way.values()):
            self._stop_expecting(effects, rank)

    # The notebook

    def assign(self, names: Iterable[str], time: int | None = None) -> None:
        """Record that the notebook has assigned names, now or at that time."""
        self._time += 1
        names, at = frozenset(names), self._time if time is None else time
        self._assigned.update(dict.fromkeys(names, at))
        for effects in self._on_their_way.values():
            effects.assigned.update(dict.fromkeys(names - effects.assigned.keys(), at))
        self.revise(names, lambda key, value: value.as_assigned(at))
        for deleted in self._to_delete.values():
            deleted.difference_update(names)

    def assign_over_own(self, names: Collection[str]) -> None:
        """Record that the notebook has assigned names where ranks have bound them themselves."""
        self._time += 1
        at = self._time
        self.revise(
            names, lambda key, value: value.as_assigned(at) if value.is_ranks_own else value
        )

    def delete(self, names: Collection[str]) -> None:
        """Record that the notebook has deleted names."""
        self.assign(names)
        for rank in self.now.ranks():
            self._to_delete.setdefault(rank, set()).update(names)

    def bring_back(
        self,
        name: str,
        identity: int,
        values: Mapping[str, RankValue],
        effects: RunEffects,
        has: Mapping[int, Collection[str]],
    ) -> list[int]:
        """Record that the notebook has bound a name to what came back for it; return its ranks.

        Parameters
        ----------
        name, identity
            The name, and the identity of the value.
        values
            The value, and the classes that it needs, by key.
        effects
            Those of the run that it came from.
        has
            The names that each rank had after the run. Other ranks may have the name from before.
        """
        found = []
        had = {rank for rank, names in has.items() if name in names}
        for rank in self.now.ranks() | had:
            value = self.now.value(rank, name)
            if value and value.run > effects.number:
                continue  # a later run has sent or bound something else
            had_it = rank in had and not self.is_gone(effects, rank)
            if had_it or (value and not value.is_outdated):
                self._confirmed.setdefault(rank, {}).update(values)
                found.append(rank)
        self._time += 1
        returned = effects.number, identity, self._time
        for each in self._on_their_way.values():
            each.returned.setdefault(name, []).append(returned)
        self.revise([name], lambda key, value: value.as_returned(*returned))
        return found

    def change(self, digest: str, item: NamespaceItem, contents: Contents | None) -> None:
        """Record that a value was changed in the notebook as ranks had changed theirs.

        Parameters
        ----------
        digest
            Its digest before the change.
        item
            The item after the change.
        contents
            What is in its containers then.
        """

        def revised(key: str, value: RankValue) -> RankValue:
            if value.digest != digest:
                return value
            return replace(value, digest=item.digest, models=item.models, contents=contents)

        self.revise([item.key], revised)

    def everything(self) -> Iterator[tuple[str, RankValue]]:
        """Yield whatever any rank has or will have, each with its name or key."""
        for table in self._tables():
            yield from table.items()

    def revise(self, keys: Collection[str], revised: Callable[[str, RankValue], RankValue]) -> None:
        """Revise what is known of the values of names on all ranks.

        Parameters
        ----------
        keys
            The names.
        revised
            Returns what is known now, for a name and what was known of its value on a rank.
        """
        for table in self._tables() if keys else ():
            for key in keys:
                if value := table.get(key):
                    table[key] = revised(key, value)

    def _tables(self) -> Iterator[dict[str, RankValue]]:
        yield from self._confirmed.values()
        for effects in self._on_their_way.values():
            for expected in effects.expected.values():
                yield expected.delivered
                yield expected.bound
