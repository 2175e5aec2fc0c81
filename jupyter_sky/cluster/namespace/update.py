"""What ranks are sent for one run, and the limit of its size."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.cluster.namespace.packing import PackedGroup
from jupyter_sky.cluster.namespace.rank_values import RankValue, RunEffects
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes, format_list
from jupyter_sky.transport.protocol.messages import NameGroup

_UNKNOWN = -1
"""Stands for no number of losses: what ranks lack is found out at the turn of the run."""


@dataclass
class NamespaceUpdate:
    """What has to be sent: groups of names, each with the ranks that need it, and their blobs.

    Only `NamespaceSync` makes it, and changes it until it is sent.

    Attributes
    ----------
    groups
        The groups, as they are sent.
    blobs
        Their large parts, by digest.
    sizes
        Bytes to send for each name, without parts that nodes were sent before.
    names, namespace, ranks
        What it was made for.
    kept
        The pickled values, if ranks are to get those of now even when it is refreshed later.
    needed
        The names, and those that their values use in turn.
    effects
        How the run that it is for may change names.
    outdated
        Names that each rank has to unbind before.
    given_anew
        Ranks that have begun with an empty namespace, by the name whose value they get while others
        may have another (see `missing`).
    losses
        How often ranks had lost something when it was made.
    is_again
        Whether ranks may have got parts of it in an earlier run.
    packed
        The groups with the objects in them, until it is sent.
    tokens
        The tokens of the values in each group that is on its way, by shipment.
    new
        The ranks that do not have an object of such a group yet, by shipment and by its token.
    left, left_items
        The names that were left out until its turn; ``None`` where all of `names` are looked at.
        The items of these, as they were when they were left out.
    """

    groups: list[NameGroup] = field(default_factory=list)
    blobs: dict[str, memoryview] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    namespace: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    kept: ItemCollector | None = None
    needed: Collection[str] = ()
    effects: RunEffects = field(default_factory=RunEffects)
    outdated: dict[int, list[str]] = field(default_factory=dict)
    given_anew: dict[str, set[int]] = field(default_factory=dict)
    losses: int = 0
    is_again: bool = False
    packed: list[tuple[PackedGroup, list[int]]] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    new: dict[str, Mapping[int, frozenset[int]]] = field(default_factory=dict)
    left: list[str] | None = None
    left_items: Sequence[NamespaceItem] = ()

    @property
    def wanted(self) -> Collection[str]:
        """The names of which ranks may lack the values."""
        return self.names if self.left is None else self.left

    @property
    def size(self) -> int:
        """Bytes to send, in all."""
        return sum(self.sizes.values())

    def add(self, group: PackedGroup, changes: Mapping[int, Mapping[str, list[str]]]) -> None:
        """Add a group.

        Parameters
        ----------
        group
            The group.
        changes
            For each receiver, the models in the group that it has, with the parts that differ.
        """
        # A model that a rank has is changed in place there; other values are bound anew. So ranks
        # with different models get different messages.
        alike: dict[str, list[int]] = {}
        for rank, each in changes.items():
            alike.setdefault(repr(each), []).append(rank)
        for ranks in alike.values():
            self.groups.append({**group.message, "ranks": ranks, "changes": changes[ranks[0]]})
        self.blobs.update(group.blobs)
        self.packed.append((group, list(changes)))

    def upload_ahead(self, items: Sequence[NamespaceItem], there: Collection[str]) -> None:
        """Add the large parts of items that are left out: these are bound later, as they are now.

        So nothing waits for the upload then, and the user may change them in place meanwhile.
        """
        self.left_items = items
        for item in items:
            self.blobs.update(item.packed[1])
        self.count(items, there)

    def for_another_run(self) -> NamespaceUpdate:
        """Return the same for another run, which keeps it when this one's is let go."""
        groups = [NameGroup(**group) for group in self.groups]
        return replace(self, groups=groups, blobs=dict(self.blobs), is_again=True, losses=_UNKNOWN)

    def let_go(self) -> None:
        """Release the user's values, because the run has ended."""
        self.blobs.clear()
        self.namespace = {}
        self.kept = None
        self.left_items = ()

    def count(self, items: Iterable[NamespaceItem], there: Collection[str]) -> None:
        """Count the bytes of items, without those parts that are there, by their digests."""
        self.sizes.update({item.key: item.size(without=there) for item in items})

    def delivered(self) -> dict[int, dict[str, RankValue]]:
        """Return what each rank gets that it was not sent yet, by name or key."""
        found: dict[int, dict[str, RankValue]] = {}
        assigned = self.effects.assigned
        for group, ranks in self.packed:
            values = group.as_delivered(self.effects.number)
            for key in values.keys() & assigned.keys():  # it gets a former value then
                values[key] = values[key].as_assigned(assigned[key])
            for rank in ranks:
                found.setdefault(rank, {}).update(values)
        return found

    def missed(self, rank: int, arrived: Collection[str]) -> list[NameGroup]:
        """Return the groups that a rank did not bind, of those that it was sent."""
        sent = (group for group in self.groups if rank in group["ranks"])
        return [group for group in sent if group["shipment"] not in arrived]

    def tokens_in(self, groups: Iterable[NameGroup]) -> list[int]:
        """Return the tokens of the values in groups."""
        return [token for each in groups for token in self.tokens.get(each["shipment"], ())]

    def unbind(self, rank: int, names: Collection[str]) -> None:
        """Add names that a rank has to unbind before."""
        if names:
            self.outdated[rank] = sorted({*self.outdated.get(rank, ()), *names})

    @property
    def watched(self) -> frozenset[str]:
        """Names that the run may bind."""
        return self.effects.cell.writes


def refuse_huge(sizes: Mapping[str, int], limit: float | None) -> None:
    """Raise ``UsageError``, with the largest values, if more than ``limit`` bytes would be sent."""
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])
    shown = [f"{name} ({format_bytes(size)})" for name, size in largest if size >= 0.1 * total]
    raise UsageError(
        f"{format_list(shown)} would be sent, and more than {format_bytes(limit)} is sent only if "
        "you say so: add `--allow-large` to the cell, or load it inside the cell."
    )
