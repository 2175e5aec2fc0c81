"""What ranks have of the notebook's names, as far as the notebook knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.namespace.packing import Item


@dataclass(frozen=True)
class Held:
    """What a rank has under a name.

    Attributes
    ----------
    digest
        The content of the notebook's value that it was made from.
    replaces
        Identity of the notebook's value in whose place the rank has put its own; 0 is for none.
    """

    digest: str | None
    replaces: int | None = None


@dataclass(frozen=True)
class Effects:
    """What a run may do to the names of its ranks.

    Attributes
    ----------
    cell
        The names that it binds.
    identities
        The notebook's values when the run was asked for, by identity.
    time
        When that was, in assignments.
    before
        What the ranks had of the names that it surely binds.
    """

    cell: CellNames = field(default_factory=lambda: CellNames(frozenset(), frozenset()))
    identities: Mapping[str, int] = field(default_factory=dict)
    time: int = 0
    before: dict[int, dict[str, Held | None]] = field(default_factory=dict)


class RemoteState:
    """Keeps for each rank what it has under each name, and what else was sent to it by a key."""

    def __init__(self) -> None:
        self._held: dict[int, dict[str, Held]] = {}
        self._deleted: dict[int, set[str]] = {}
        self._assigned: dict[str, int] = {}
        self._time = 0

    def lacks(self, rank: int, item: Item) -> bool:
        """Return whether a rank has something else than this, and should have this."""
        held = self._held.get(rank, {}).get(item.key)
        if held is None:
            return True
        if held.replaces is not None:
            return held.replaces != id(item.value)
        return held.digest != item.digest

    def stands(self, rank: int, name: str, value: Any) -> bool:
        """Return whether a rank has put something else in place of the notebook's value."""
        held = self._held.get(rank, {}).get(name)
        return held is not None and held.replaces == id(value)

    def outdated(self, rank: int, effects: Effects) -> list[str]:
        """Return names that a rank has to let go of before a run.

        They are those that the notebook has deleted, and those that the run may only bind and
        whose values the notebook has replaced. Were these left there, a rank could not tell whether
        a number was bound to such a name again.
        """
        held = self._held.get(rank, {})
        replaced = {
            name
            for name in effects.cell.writes - effects.cell.reads
            if (identity := effects.identities.get(name, 0))
            and (name not in held or held[name].replaces not in (None, identity))
        }
        return sorted(replaced | self._deleted.get(rank, set()))

    def news(self, rank: int, names: Iterable[str]) -> set[str]:
        """Return names that were assigned in the notebook since a rank got them, if it did."""
        held = self._held.get(rank, {})
        return {name for name in names if name in self._assigned and name not in held}

    def held_by(self, ranks: Sequence[int]) -> set[str]:
        """Return what all of these ranks have."""
        return set.intersection(*(set(self._held.get(rank, {})) for rank in ranks))

    # Sending

    def deliver(self, ranks: Iterable[int], digests: Mapping[str, str]) -> None:
        """Note that ranks get what has these digests."""
        for rank in ranks:
            held = self._held.setdefault(rank, {})
            held.update({key: Held(digest) for key, digest in digests.items()})

    def let_go(self, outdated: Mapping[int, Iterable[str]]) -> None:
        """Note that ranks are told to let go of names."""
        for rank, names in outdated.items():
            self._deleted.get(rank, set()).difference_update(names)

    def keep(self, outdated: Mapping[int, Iterable[str]], effects: Effects) -> None:
        """Note that ranks were not told to."""
        for rank, names in outdated.items():
            self._deleted.setdefault(rank, set()).update(
                name for name in names if self._assigned.get(name, 0) <= effects.time
            )

    def lose(self, ranks: Iterable[int], keys: Iterable[str]) -> None:
        """Note that ranks did not get something."""
        for rank in ranks:
            for key in keys:
                self._held.get(rank, {}).pop(key, None)

    def remember(self, rank: int, digests: Mapping[str, str]) -> None:
        """Note what a rank has, as its agent tells."""
        self._held[rank] = {key: Held(digest) for key, digest in digests.items()}

    def forget(self, rank: int) -> None:
        """Note that a rank has nothing any more."""
        self._held.pop(rank, None)
        self._deleted.pop(rank, None)

    # AssignmentTracker

    def assign(self, names: Iterable[str]) -> None:
        """Note that the notebook has assigned names."""
        self._time += 1
        for name in names:
            self._assigned[name] = self._time
            for rank, held in list(self._held.items()):
                held.pop(name, None)
                self._deleted.get(rank, set()).discard(name)

    def delete(self, names: Collection[str]) -> None:
        """Note that the notebook has deleted names."""
        self.assign(names)
        for rank in list(self._held):
            self._deleted.setdefault(rank, set()).update(names)

    def foresee(self, cell: CellNames, namespace: Mapping[str, Any]) -> Effects:
        """Return what the run of a cell may do."""
        identities = {name: id(value) for name, value in dict(namespace).items()}
        return Effects(cell, identities, self._time)

    def begin(self, effects: Effects, ranks: Iterable[int]) -> None:
        """Note that a run is on its way.

        It counts as if it had ended well: the next, which may be sent before that, may need what
        it makes.
        """
        for rank in ranks:
            held = self._held.setdefault(rank, {})
            effects.before[rank] = {name: held.get(name) for name in effects.cell.surely}
            for name in effects.cell.surely:
                self._replace(rank, name, effects.identities.get(name, 0))

    def end(
        self, effects: Effects, rank: int, bound: Mapping[str, bool] | None, *, well: bool
    ) -> None:
        """Note what a run did on a rank.

        Parameters
        ----------
        effects
            What it could do.
        rank
            The rank.
        bound
            Names of the rank, each with whether it holds another object than before; ``None`` when
            nothing was run.
        well
            Whether the run came to its end.
        """
        held = self._held.setdefault(rank, {})
        before = effects.before.pop(rank, {})
        anew = {name for name, other in (bound or {}).items() if other}
        for name in effects.cell.writes | anew:
            if self._assigned.get(name, 0) > effects.time:
                continue  # in the notebook, since
            if name in anew or (well and name in effects.cell.surely):
                self._replace(rank, name, effects.identities.get(name, 0))
            elif name in before:
                former = before[name]
                if former is None:
                    held.pop(name, None)
                else:
                    held[name] = former

    def bring_back(
        self, name: str, held: Mapping[str, Held], has: Mapping[int, Collection[str]]
    ) -> None:
        """Note that a name in the notebook was bound to what a rank has under it.

        Parameters
        ----------
        name
            The name.
        held
            What that amounts to.
        has
            The names that ranks are known to have; others may have it from earlier.
        """
        for rank in self._held.keys() | has.keys():
            if name in has.get(rank, ()) or name in self._held.get(rank, {}):
                self._held.setdefault(rank, {}).update(held)

    def _replace(self, rank: int, name: str, identity: int) -> None:
        held = self._held.setdefault(rank, {})
        former = held.get(name)
        held[name] = Held(former.digest if former else None, identity)
