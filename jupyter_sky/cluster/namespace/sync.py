"""What ranks are sent of the notebook's names.

The rule is that the last assignment wins, on whichever side it was made. A name is sent when it is
new, when it was assigned in the notebook, or when what it holds has changed there, since it was
sent last. It is not sent while a rank has bound it itself since, nor because its value came back.
So what ranks do to it stays until the person assigns it again.

Names that share an object share it on the ranks too: they are sent as one, or refer to what a rank
has already. If only one of them has changed, only that one is sent; the others stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.namespace.dependencies import Dependencies
from jupyter_sky.cluster.namespace.packing import Group, Item, Items, pack_together
from jupyter_sky.cluster.namespace.remote_state import Effects, Held, RemoteState
from jupyter_sky.cluster.namespace.sharing import GroupPlan, GroupPlanner
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes, format_list
from jupyter_sky.serialization.object_tokens import Departures
from jupyter_sky.transport.frames import Message

HUGE = 4_000_000_000
"""Bytes above which values are sent only if the user says that this is meant."""

_NOTHING = CellNames(frozenset(), frozenset())


@dataclass(frozen=True)
class NamespaceUpdate:
    """What has to be sent: groups of names, each with the ranks that need it, and their blobs.

    Attributes
    ----------
    sizes
        Bytes that leave for each name; what nodes were sent before does not leave again.
    effects
        What the run that it is for may do to names.
    outdated
        Names that a rank has to let go of before.
    losses
        How many things that ranks did not get, or not keep, the outbox knew of by then.
    """

    groups: list[Message] = field(default_factory=list)
    blobs: dict[str, memoryview] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    namespace: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    effects: Effects = field(default_factory=Effects)
    outdated: dict[int, list[str]] = field(default_factory=dict)
    losses: int = 0
    packed: list[tuple[Group, list[int]]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.sizes.values())

    @property
    def watched(self) -> frozenset[str]:
        """Names that the run may bind."""
        return self.effects.cell.writes


class NamespaceSync:
    """Finds out what ranks lack of what they need, and remembers what they were sent.

    Attributes
    ----------
    needs
        What they need.
    """

    def __init__(self) -> None:
        self._remote_state = RemoteState()
        self.needs = Dependencies(self._remote_state)
        self._departures = Departures()
        self._planner = GroupPlanner(self._remote_state, self._departures)
        self._returned: dict[str, int] = {}
        self._gone_out: set[str] = set()
        self._losses = 0

    # What is sent

    def update(
        self,
        names: Iterable[str],
        namespace: Mapping[str, Any],
        ranks: Sequence[int],
        *,
        cell: CellNames = _NOTHING,
        force: bool = False,
        limit: float | None = HUGE,
    ) -> NamespaceUpdate:
        """Return what ``ranks`` need of ``names``, and of the names that those use in turn.

        Parameters
        ----------
        names
            What is needed.
        namespace
            The notebook's.
        ranks
            Who needs it.
        cell
            The cell that needs it.
        force
            Whether ``names`` are sent even if the ranks have something else in their place.
        limit
            Bytes above which nothing is sent; ``None`` is for no limit.

        Raises
        ------
        UsageError
            When a name cannot be pickled, or all of it is too large; nothing is sent then.
        """
        names = tuple(names)
        forced = frozenset(names) if force else frozenset[str]()
        items = self.needs.items(namespace)
        found = self.needs.find(names, items, ranks, cell=cell, forced=forced)
        update = NamespaceUpdate(
            names=names,
            namespace=namespace,
            ranks=tuple(ranks),
            effects=(effects := self._remote_state.foresee(cell, namespace)),
            outdated={rank: self._remote_state.outdated(rank, effects) for rank in ranks},
            losses=self._losses,
        )
        # Ranks that lack the same are sent the same.
        lacking: dict[tuple[Item, ...], list[int]] = {}
        for rank in ranks:
            missing = [
                item for item in found if item.key in forced or self._remote_state.lacks(rank, item)
            ]
            lacking.setdefault(tuple(missing), []).append(rank)
        for lacked, members in lacking.items():
            for plan in self._planner.plan(lacked, items, members):
                self._add(update, plan)
        refuse_huge(update.sizes, limit)
        return update

    def current(self, update: NamespaceUpdate) -> NamespaceUpdate:
        """Return the update, with what was found to be lost since it was made."""
        if update.losses == self._losses:
            return update
        more = self.update(
            update.names, update.namespace, update.ranks, cell=update.effects.cell, limit=None
        )
        self.sent(more)
        update.effects.before.update(more.effects.before)
        return replace(
            update, groups=[*update.groups, *more.groups], blobs={**update.blobs, **more.blobs}
        )

    def _add(self, update: NamespaceUpdate, plan: GroupPlan) -> None:
        group = pack_together(plan.items, self._departures, plan.links)
        update.groups.append({**group.message, "ranks": plan.ranks})
        update.blobs.update(group.blobs)
        update.packed.append((group, plan.ranks))
        update.sizes.update({item.key: item.size(without=self._gone_out) for item in plan.items})

    # What becomes of it

    def sent(self, update: NamespaceUpdate) -> None:
        """Note that a update is on its way; what is made from here on comes after it."""
        for group, ranks in update.packed:
            self._remote_state.deliver(ranks, group.message["digests"])
            self._departures.note(ranks, group.shared, group.tokens)
        update.packed.clear()
        self._gone_out.update(update.blobs)
        self._remote_state.let_go(update.outdated)
        self._remote_state.begin(update.effects, update.ranks)

    def lost(self, update: NamespaceUpdate) -> None:
        """Note that a update did not arrive."""
        self._remote_state.keep(update.outdated, update.effects)
        for rank in update.ranks:
            self._remote_state.end(update.effects, rank, None, well=False)
        for group in update.groups:
            self._remote_state.lose(group["ranks"], group["names"])
        self._losses += 1

    def missed(self, update: NamespaceUpdate, rank: int, arrived: Collection[str]) -> None:
        """Note that a rank did not come to bind what it was sent, but for what has ``arrived``."""
        for group in update.groups:
            if rank in group["ranks"] and group["shipment"] not in arrived:
                self._remote_state.lose([rank], group["names"])
                self._losses += 1

    def ran(
        self, update: NamespaceUpdate, rank: int, bound: Mapping[str, bool], *, well: bool
    ) -> None:
        """Note what a rank did to the names that its run was watched for.

        Parameters
        ----------
        update
            What the run was sent.
        rank
            The rank.
        bound
            The names that it has, each with whether it holds another object than before.
        well
            Whether the run came to its end.
        """
        self._remote_state.end(update.effects, rank, bound, well=well)

    def returned(
        self, names: Iterable[str], namespace: Mapping[str, Any], has: Mapping[int, Collection[str]]
    ) -> None:
        """Note that names in the notebook were bound to what ranks gave for them.

        They are not sent back: each rank has a value of its own.

        Parameters
        ----------
        names
            The names.
        namespace
            The notebook's, in which they are bound.
        has
            The names that ranks have; others may have them from earlier runs.
        """
        items = Items(namespace, {}, {})
        for name in names:
            self._returned[name] = id(namespace[name])
            try:
                held = {item.key: Held(item.digest) for item in items.parts(name)}
            except UsageError:
                held = {name: Held(None, id(namespace[name]))}
            self._remote_state.bring_back(name, held, has)

    def assigned(self, names: Iterable[str], namespace: Mapping[str, Any]) -> None:
        """Note that the notebook has assigned names; they are sent when they are needed next.

        What they have come to hold because it was returned is no assignment.
        """
        names = [
            name for name in names if self._returned.pop(name, None) != id(namespace.get(name))
        ]
        self._remote_state.assign(names)
        for name in names:
            self.needs.forget(name)

    def deleted(self, names: Collection[str]) -> None:
        """Note that the notebook has deleted names; the ranks let go of them too."""
        self._remote_state.delete(names)
        for name in names:
            self._returned.pop(name, None)
            self.needs.forget(name)

    def learn(self, objects: Mapping[int, Any]) -> None:
        """Note that objects came back: here they stand for those of the ranks."""
        self._departures.learn(objects)

    def remember(self, rank: int, names: Mapping[str, str]) -> None:
        """Note what a rank has, as its agent tells."""
        self._remote_state.remember(rank, names)

    def forget(self, rank: int) -> None:
        """Note that a rank has an empty namespace."""
        self._remote_state.forget(rank)
        self._departures.forget(rank)
        self._losses += 1


def refuse_huge(sizes: Mapping[str, int], limit: float | None) -> None:
    """Raise ``UsageError`` when more than ``limit`` bytes would be sent; name what is large."""
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])
    shown = [f"{name} ({format_bytes(size)})" for name, size in largest if size >= 0.1 * total]
    raise UsageError(
        f"{format_list(shown)} would be sent, and more than {format_bytes(limit)} is sent only if "
        "you say so: add `--allow-large` to the cell, or load it inside of the cell."
    )
