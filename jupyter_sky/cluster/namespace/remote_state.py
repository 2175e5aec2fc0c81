"""What ranks have of the notebook's names, as far as the notebook knows.

Of each rank it is known what it had under each name after the last run that it reported (the
*confirmed* values), and what the runs on their way to it will deliver and bind (the *expected*
ones). An update that is made now is for a run behind all of these, so it counts on both. An update
that is refreshed when its run comes to its turn counts only on the runs before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.analysis.namespace_diff import identities
from jupyter_sky.cluster.namespace.packing import NamespaceItem
from jupyter_sky.cluster.namespace.rank_values import BEFORE_ALL, Expected, RankValue, RunEffects
from jupyter_sky.serialization.model_changes import KnownModel, changes_of

_NOTHING: Mapping[str, RankValue] = {}


class RemoteState:
    """Keeps for each rank what it has under each name, and what else was sent to it by a key.

    It belongs to `NamespaceSync`, whose lock has to be held.
    """

    def __init__(self) -> None:
        self._confirmed: dict[int, dict[str, RankValue]] = {}
        self._on_their_way: dict[int, RunEffects] = {}
        self._turn: int | None = None
        self._starts: dict[int, int] = {}
        self._to_delete: dict[int, set[str]] = {}
        self._assigned: dict[str, int] = {}
        self._time = 0
        self._numbers = itertools.count()

    # What a rank has

    def value(self, rank: int, key: str) -> RankValue | None:
        """Return what a rank will have under a name, or by another key, when it is its turn."""
        for expected in reversed(self._expected_of(rank)) if self._on_their_way else ():
            if key in expected:
                return expected[key]
        return self._confirmed.get(rank, _NOTHING).get(key)

    def keys(self, rank: int) -> set[str]:
        """Return the names, and other keys, of what a rank will have and may keep."""
        values = {**self._confirmed.get(rank, {})}
        for expected in self._expected_of(rank):
            values.update(expected)
        return {key for key, value in values.items() if not value.is_outdated}

    def names_kept(self, rank: int) -> set[str]:
        """Return names under which a rank has what it was sent for the notebook's value, or gave.

        It may have changed it in place.
        """
        values = {key: self.value(rank, key) for key in self.keys(rank)}
        return {key for key, each in values.items() if each and each.digest and each.run >= 0}

    def names_anywhere(self) -> set[str]:
        """Return the names and keys that any rank has."""
        return set().union(*map(self.keys, self._ranks()))

    def names_on(self, ranks: Sequence[int]) -> set[str]:
        """Return the names and keys that all of these ranks have."""
        return set.intersection(*(self.keys(rank) for rank in ranks))

    def lacks(self, rank: int, item: NamespaceItem) -> bool:
        """Return whether a rank has something else than this, and should have this."""
        value = self.value(rank, item.key)
        if value is None:
            return True
        if value.replaces is not None:
            return value.replaces != id(item.value)
        return value.digest != item.digest

    def changes(
        self, rank: int, items: Iterable[NamespaceItem], whole: Collection[str]
    ) -> dict[str, list[str]]:
        """Return the models that a rank has, each with what differs, or all if it is in whole."""
        has = {item: self.value(rank, item.key) for item in items}
        known = ((item.key, each.model if each else None, item.model) for item, each in has.items())
        return changes_of(known, whole)

    def has_rebound(self, rank: int, name: str, value: Any) -> bool:
        """Return whether a rank has bound a name itself, in place of this value."""
        has = self.value(rank, name)
        return has is not None and has.replaces == id(value)

    def names_to_unbind(self, rank: int, effects: RunEffects) -> list[str]:
        """Return names that a rank has to unbind before a run.

        They are those that the notebook has deleted, and those that the run may only bind and
        whose values the notebook has replaced. Were these left there, a rank could not tell whether
        a number was bound to such a name again.
        """
        replaced = set()
        for name in effects.cell.writes - effects.cell.reads:
            if identity := effects.identities.get(name, 0):
                value = self.value(rank, name)
                if not value or value.is_outdated or value.replaces not in (None, identity):
                    replaced.add(name)
        unbound = replaced.union(self._to_delete.get(rank, ()))
        return sorted(unbound) if unbound else []

    def has_to_unbind(self, effects: RunEffects) -> bool:
        """Return whether any rank may have names to unbind before a run."""
        cell = effects.cell
        return bool(self._to_delete) or not cell.writes <= cell.reads

    def assigned_since(self, rank: int, names: Iterable[str]) -> set[str]:
        """Return names that were assigned in the notebook since a rank got them, if it did."""
        there = self.keys(rank)
        return {name for name in names if name in self._assigned and name not in there}

    @contextmanager
    def at_turn_of(self, run: int) -> Iterator[None]:
        """Look at ranks as they will be when a run takes its turn, not after those behind it.

        Parameters
        ----------
        run
            Number of the run.
        """
        before, self._turn = self._turn, run
        try:
            yield
        finally:
            self._turn = before

    def _expected_of(self, rank: int) -> list[Mapping[str, RankValue]]:
        found: list[Mapping[str, RankValue]] = []
        for number, effects in sorted(self._on_their_way.items()):
            if (expected := effects.expected.get(rank)) is None:
                continue
            if self._turn is None or number <= self._turn:
                found.append(expected.delivered)
            if self._turn is None or number < self._turn:
                found.append(expected.bound)
        return found

    # Runs

    def foresee(self, cell: CellNames, namespace: Mapping[str, Any]) -> RunEffects:
        """Return what the run of a cell may do."""
        return RunEffects(next(self._numbers), cell, identities(namespace), self._time)

    def expect(
        self,
        effects: RunEffects,
        ranks: Iterable[int],
        sent: Mapping[int, Mapping[str, str]],
        models: Mapping[str, KnownModel],
    ) -> None:
        """Record that a run is on its way, or again, because ranks have lost something since.

        Parameters
        ----------
        effects
            What the run may do.
        ranks
            Its ranks.
        sent
            For each of them the digests of what it is sent.
        models
            The models among it.
        """
        number, expected = effects.number, effects.expected
        bound = {name: self._binding(name, effects) for name in effects.cell.always_bound}
        alike = Expected({}, bound)  # of all that are sent nothing: mostly of all
        for rank in ranks:
            effects.starts[rank] = self._starts.get(rank, 0)
            digests, before = sent.get(rank), expected.get(rank)
            if before is None and not digests:
                expected[rank] = alike
                continue
            delivered = {
                key: RankValue(each, number, model=models.get(key))
                for key, each in (digests or {}).items()
            }
            before = before or Expected()
            expected[rank] = Expected(before.delivered | delivered, before.bound | bound)
        if effects.expected:
            self._on_their_way[effects.number] = effects

    def ended(
        self, effects: RunEffects, rank: int, bound: Mapping[str, bool], *, well: bool
    ) -> None:
        """Record what a run did on a rank.

        Parameters
        ----------
        effects
            What it could do.
        rank
            The rank.
        bound
            Names of the rank, each with whether it holds another object than before.
        well
            Whether the run came to its end.
        """
        expected = self._stop_expecting(effects, rank)
        if self.is_gone(effects, rank):
            return  # with the process
        confirmed = self._confirmed.get(rank)
        if confirmed is None:
            confirmed = self._confirmed[rank] = {}
        if expected and expected.delivered:
            confirmed.update(expected.delivered)
        names = {name for name, other in bound.items() if other} if bound else set()
        if well and effects.cell.always_bound:
            names |= effects.cell.always_bound
        for name in names:
            confirmed[name] = self._binding(name, effects)

    def cancel(self, effects: RunEffects) -> None:
        """Record that a run does not happen on the ranks that have not reported it."""
        for rank in list(effects.expected):
            self._stop_expecting(effects, rank)

    def is_gone(self, effects: RunEffects, rank: int) -> bool:
        """Return whether a rank has become another process since a run was sent to it."""
        now = self._starts.get(rank, 0)
        return effects.starts.get(rank, now) != now

    def unbound(self, names: Mapping[int, Iterable[str]]) -> None:
        """Record that ranks are told to unbind names."""
        for rank, each in names.items() if self._to_delete else ():
            self._to_delete.get(rank, set()).difference_update(each)

    def not_unbound(self, names: Mapping[int, Iterable[str]], effects: RunEffects) -> None:
        """Record that ranks were not told to unbind names, because the run did not happen."""
        for rank, each in names.items():
            self._to_delete.setdefault(rank, set()).update(
                name for name in each if not self._is_assigned_since(name, effects)
            )

    def _stop_expecting(self, effects: RunEffects, rank: int) -> Expected | None:
        expected = effects.expected.pop(rank, None)
        if not effects.expected:
            self._on_their_way.pop(effects.number, None)
        return expected

    def _binding(self, name: str, effects: RunEffects) -> RankValue:
        """Return what a rank has under a name when a run has bound it."""
        if self._is_assigned_since(name, effects):
            return RankValue(None, effects.number)
        return RankValue(None, effects.number, effects.identities.get(name, 0))

    def _is_assigned_since(self, name: str, effects: RunEffects) -> bool:
        """Return whether the notebook has assigned a name since a run was asked for."""
        return self._assigned.get(name, 0) > effects.time

    # Ranks

    def lose(self, rank: int, keys: Iterable[str]) -> None:
        """Record that a rank did not bind something that it was sent for a run that has ended."""
        for key in keys:
            self._confirmed.get(rank, {}).pop(key, None)

    def remember(self, rank: int, digests: Mapping[str, str]) -> None:
        """Record what a rank has, as its agent tells."""
        self._confirmed[rank] = {
            key: RankValue(digest, BEFORE_ALL) for key, digest in digests.items()
        }

    def forget(self, rank: int) -> None:
        """Record that a rank has nothing any more."""
        self._starts[rank] = self._starts.get(rank, 0) + 1
        self._confirmed.pop(rank, None)
        self._to_delete.pop(rank, None)
        for effects in list(self._on_their_way.values()):
            self._stop_expecting(effects, rank)

    # The notebook

    def assign(self, names: Iterable[str]) -> None:
        """Record that the notebook has assigned names."""
        self._time += 1
        for name in names:
            self._assigned[name] = self._time
            for values in self._tables():
                if value := values.get(name):
                    values[name] = RankValue(None, value.run, model=value.model)
            for deleted in self._to_delete.values():
                deleted.discard(name)

    def delete(self, names: Collection[str]) -> None:
        """Record that the notebook has deleted names."""
        self.assign(names)
        for rank in self._ranks():
            self._to_delete.setdefault(rank, set()).update(names)

    def bring_back(
        self,
        name: str,
        values: Mapping[str, RankValue],
        effects: RunEffects,
        has: Mapping[int, Collection[str]],
    ) -> None:
        """Record that a name in the notebook was bound to what a rank has under it.

        Parameters
        ----------
        name
            The name.
        values
            The notebook's value, and the classes that it needs, by key.
        effects
            Those of the run that it came from.
        has
            The names that ranks had after the run; others may have it from earlier.
        """
        had = {rank for rank, names in has.items() if name in names}
        for rank in self._ranks() | had:
            value = self.value(rank, name)
            if value and value.run > effects.number:
                continue  # it was sent, or has bound, something else since
            had_it = rank in had and not self.is_gone(effects, rank)
            if had_it or (value and not value.is_outdated):
                self._confirmed.setdefault(rank, {}).update(values)

    def change(self, digest: str, item: NamespaceItem) -> None:
        """Record that something was changed in the notebook as it has changed on ranks.

        Parameters
        ----------
        digest
            Its digest before.
        item
            What it is now.
        """
        for values in self._tables():
            if (value := values.get(item.key)) and value.digest == digest:
                values[item.key] = replace(value, digest=item.digest, model=item.model)

    def _tables(self) -> Iterator[dict[str, RankValue]]:
        yield from self._confirmed.values()
        for effects in self._on_their_way.values():
            for expected in effects.expected.values():
                yield expected.delivered
                yield expected.bound

    def _ranks(self) -> set[int]:
        """Return the ranks that have something, or will have."""
        return set(self._confirmed).union(*(each.expected for each in self._on_their_way.values()))
