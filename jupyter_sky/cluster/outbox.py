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
from types import FunctionType, MethodType
from typing import Any

from jupyter_sky.cluster.packing import Item, Items, connected, pack_together
from jupyter_sky.errors import UsageError
from jupyter_sky.transport import pickling
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.names import CellNames
from jupyter_sky.transport.sharing import Shipments, Token, is_mutable

HUGE = 4_000_000_000
"""Bytes above which values are sent only if the person says that this is meant."""

_NOTHING = CellNames(frozenset(), frozenset())


@dataclass(frozen=True)
class _Held:
    """What a rank has under a name, as seen from the notebook.

    Attributes
    ----------
    digest
        The content of the notebook's value that it was made from.
    replaces
        Identity of the notebook's value in whose place a rank has put its own; 0 is for none.
    """

    digest: str | None
    replaces: int | None = None


@dataclass(frozen=True)
class Parcel:
    """What has to be sent: groups of names, each with the ranks that need it, and their blobs.

    Attributes
    ----------
    sizes
        Bytes that leave for each name; what nodes were sent before does not leave again.
    watched
        Names that the cell may bind on the ranks.
    """

    groups: list[Message] = field(default_factory=list)
    blobs: dict[str, memoryview] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    namespace: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    cell: CellNames = _NOTHING
    # Identities of the notebook's values of the watched names, and the time, in assignments and in
    # losses, when the parcel was made.
    _identities: Mapping[str, int] = field(default_factory=dict)
    _assignments: int = 0
    _losses: int = 0
    # What the outbox held for the watched names before, by rank.
    _before: dict[int, dict[str, _Held | None]] = field(default_factory=dict)
    _shared: list[Any] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.sizes.values())

    @property
    def watched(self) -> frozenset[str]:
        return self.cell.writes


class Outbox:
    """Remembers, for each rank, what it has of the notebook's names.

    Attributes
    ----------
    shares_files
        Whether the ranks see the notebook's files.
    """

    def __init__(self) -> None:
        self.shares_files = True
        self._held: dict[int, dict[str, _Held]] = {}
        self._shipments = Shipments()
        self._bodies: dict[str, frozenset[str]] = {}
        self._submodules: dict[str, set[str]] = {}
        self._gone_out: set[str] = set()
        self._assigned: dict[str, int] = {}
        self._assignments = 0
        self._losses = 0

    # What is sent

    def parcel(
        self,
        names: Iterable[str],
        namespace: Mapping[str, Any],
        ranks: Sequence[int],
        *,
        cell: CellNames = _NOTHING,
        force: bool = False,
        limit: float | None = HUGE,
    ) -> Parcel:
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
        self._bodies.update(cell.bodies)
        items = Items(namespace, self._bodies, self._submodules)
        forced = frozenset(names) if force else frozenset[str]()

        def replaced(name: str, value: Any) -> bool:
            return name not in forced and all(self._stands(rank, name, value) for rank in ranks)

        found = items.find(names, cell, replaced)
        found += items.sources(found, cell, shared=self.shares_files)
        parcel = Parcel(
            names=names,
            namespace=namespace,
            ranks=tuple(ranks),
            cell=cell,
            _identities={
                name: id(namespace[name]) if name in namespace else 0 for name in cell.writes
            },
            _assignments=self._assignments,
            _losses=self._losses,
        )
        # Ranks that lack the same, and have got the same so far, are sent the same.
        plans: dict[tuple[Any, ...], list[int]] = {}
        for rank in ranks:
            lacking = [item for item in found if item.key in forced or self._lacks(rank, item)]
            if lacking:
                plan = tuple(item.key for item in lacking), self._shipments.known_to(rank)
                plans.setdefault(plan, []).append(rank)
        keyed = {item.key: item for item in found}
        sizes: dict[str, int] = {}
        for (keys, _), members in plans.items():
            for part in self._divide([keyed[key] for key in keys], items, members):
                self._add(parcel, part, members, sizes)
        _refuse_huge(sizes, limit)
        return replace(parcel, sizes=sizes)

    def current(self, parcel: Parcel) -> Parcel:
        """Return the parcel, with what a rank needs in addition that lost its namespace since."""
        if parcel._losses == self._losses:
            return parcel
        more = self.parcel(
            parcel.names, parcel.namespace, parcel.ranks, cell=parcel.cell, limit=None
        )
        self.sent(more)
        parcel._before.update(more._before)
        return replace(
            parcel, groups=[*parcel.groups, *more.groups], blobs={**parcel.blobs, **more.blobs}
        )

    def _lacks(self, rank: int, item: Item) -> bool:
        held = self._held.get(rank, {}).get(item.key)
        if held is None:
            return True
        if held.replaces is not None:
            return held.replaces != id(item.value)
        return held.digest != item.digest

    def _stands(self, rank: int, name: str, value: Any) -> bool:
        """Return whether a rank has a value of its own in place of this one."""
        held = self._held.get(rank, {}).get(name)
        return held is not None and held.replaces == id(value)

    def _divide(
        self, lacking: Sequence[Item], items: Items, ranks: Sequence[int]
    ) -> Iterable[tuple[list[Item], dict[int, Token]]]:
        """Put what ranks lack in groups, each with the tokens of what they have of it."""
        # Modules first, from which the rest is imported.
        for kind in ("source", "class"):
            yield from (([item], {}) for item in lacking if item.kind == kind)
        wanted = {item.key: item for item in lacking if item.is_name}
        have: dict[str, Item] = {}
        if any(item.pickled.shared for item in wanted.values()):
            have = {item.key: item for item in self._kept(items, ranks) if item.key not in wanted}
        for members in connected([*wanted.values(), *have.values()]):
            group = [item for item in members if item.key in wanted]
            rest = [item for item in members if item.key in have]
            if group:
                yield self._linked(group, rest, ranks)

    def _kept(self, items: Items, ranks: Sequence[int]) -> list[Item]:
        """Return the names that all of these ranks were sent, as far as the notebook has them."""
        everywhere = set.intersection(*(set(self._held.get(rank, {})) for rank in ranks))
        found = []
        for name in sorted(everywhere):
            value = items.namespace.get(name)
            # Pickling them takes time, so that what shares nothing with anything is left out.
            if not (is_mutable(value) or isinstance(value, (tuple, FunctionType, MethodType))):
                continue
            try:
                found.append(items.item(name))
            except UsageError:  # it has become something that cannot be sent, and nobody asked
                continue
        return found

    def _linked(
        self, group: list[Item], rest: list[Item], ranks: Sequence[int]
    ) -> tuple[list[Item], dict[int, Token]]:
        """Find out what a group can refer to, and what has to be sent with it."""
        group = list(group)
        while True:
            # What has changed as well goes with it, even if this cell does not need it: what it
            # shares with the group is no longer what the ranks have.
            changed = [item for item in rest if self._lacks(ranks[0], item)]
            group += changed
            rest = [item for item in rest if item not in changed]
            shared = {key: entry for item in rest for key, entry in item.pickled.shared.items()}
            tokens = self._shipments.tokens(ranks[0], shared)
            if not rest:
                return group, {}
            # What is shared and has no token would become a copy.
            loose = shared.keys() - tokens.keys()
            loose &= pickling.reached([item.value for item in group], tokens)
            joining = [
                item
                for item in rest
                if loose & item.pickled.shared.keys()
                and not self._stands(ranks[0], item.key, item.value)
            ]
            if not joining:
                return group, tokens
            group += joining
            rest = [item for item in rest if item not in joining]

    def _add(
        self,
        parcel: Parcel,
        part: tuple[list[Item], dict[int, Token]],
        ranks: Sequence[int],
        sizes: dict[str, int],
    ) -> None:
        members, tokens = part
        group, blobs, pickled = pack_together(members, ranks, tokens)
        parcel.groups.append(group)
        parcel.blobs.update(blobs)
        parcel._shared.append((group["shipment"], ranks, pickled))
        for item in members:
            message, parts = item.packed
            own = sum(len(part) for part in _inline(message))
            own += sum(part.nbytes for key, part in parts.items() if key not in self._gone_out)
            sizes[item.key] = own

    # What becomes of it

    def sent(self, parcel: Parcel) -> None:
        """Note that a parcel is on its way; what is made from here on comes after it."""
        for group in parcel.groups:
            for rank in group["ranks"]:
                held = self._held.setdefault(rank, {})
                held.update({key: _Held(digest) for key, digest in group["digests"].items()})
        for shipment, ranks, pickled in parcel._shared:
            self._shipments.note(shipment, ranks, pickled.shared)
        parcel._shared.clear()
        self._gone_out.update(parcel.blobs)
        # A run that waits for its turn counts as if it had ended well: the next may need what it
        # makes.
        for rank in parcel.ranks:
            held = self._held.setdefault(rank, {})
            parcel._before[rank] = {name: held.get(name) for name in parcel.cell.surely}
            for name in parcel.cell.surely:
                self._replace(rank, name, parcel._identities[name])

    def lost(self, parcel: Parcel) -> None:
        """Note that a parcel did not arrive."""
        for rank in parcel.ranks:
            self.ran(parcel, rank, None, well=False)
        for group in parcel.groups:
            for rank in group["ranks"]:
                for key in group["names"]:
                    self._held.get(rank, {}).pop(key, None)

    def missed(self, parcel: Parcel, rank: int, arrived: Collection[str]) -> None:
        """Note that a rank did not come to bind what it was sent, but for what has ``arrived``."""
        for group in parcel.groups:
            if rank in group["ranks"] and group["shipment"] not in arrived:
                for key in group["digests"]:
                    self._held.get(rank, {}).pop(key, None)

    def ran(
        self, parcel: Parcel, rank: int, bound: Mapping[str, bool] | None, *, well: bool
    ) -> None:
        """Note what a rank did to the names that its run was watched for.

        Parameters
        ----------
        parcel
            What the run was sent.
        rank
            The rank.
        bound
            The names that it has, each with whether it holds another object than before; ``None``
            when nothing was run.
        well
            Whether the run came to its end.
        """
        held = self._held.setdefault(rank, {})
        before = parcel._before.pop(rank, {})
        for name in parcel.watched:
            if self._assigned.get(name, 0) > parcel._assignments:
                continue  # in the notebook, since
            anew = bound is not None and bound.get(name, False)
            if anew or (well and name in parcel.cell.surely and bound and name in bound):
                self._replace(rank, name, parcel._identities[name])
            elif name in before:
                former = before[name]
                if former is None or (bound is not None and name not in bound):
                    held.pop(name, None)
                else:
                    held[name] = former

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
            try:
                held = {item.key: _Held(item.digest) for item in items.parts(name)}
            except UsageError:
                held = {name: _Held(None, id(namespace[name]))}
            for rank in self._held.keys() | has.keys():
                if name in has.get(rank, ()) or name in self._held.get(rank, {}):
                    self._held.setdefault(rank, {}).update(held)

    def assigned(self, names: Iterable[str]) -> None:
        """Note that the notebook has assigned names; they are sent when they are needed next."""
        self._assignments += 1
        for name in names:
            self._assigned[name] = self._assignments
            self._bodies.pop(name, None)
            for held in list(self._held.values()):
                held.pop(name, None)

    def learn(self, objects: Mapping[Token, Any]) -> None:
        """Note that objects came back that have tokens: here they stand for the ranks' own."""
        self._shipments.learn(objects)

    def remember(self, rank: int, names: Mapping[str, str]) -> None:
        """Note what a rank has, as its agent tells."""
        self._held[rank] = {name: _Held(digest) for name, digest in names.items()}

    def forget(self, rank: int) -> None:
        """Note that a rank has an empty namespace."""
        self._held.pop(rank, None)
        self._shipments.forget(rank)
        self._losses += 1

    def _replace(self, rank: int, name: str, identity: int) -> None:
        held = self._held.setdefault(rank, {})
        former = held.get(name)
        held[name] = _Held(former.digest if former else None, identity)


def _inline(message: Message) -> Iterable[bytes]:
    return (part for part in (message["stream"], *message["buffers"]) if isinstance(part, bytes))


def _refuse_huge(sizes: Mapping[str, int], limit: float | None) -> None:
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])
    shown = [f"{name} ({describe_size(size)})" for name, size in largest if size >= 0.1 * total]
    raise UsageError(
        f"{_listed(shown)} would be sent, and more than {describe_size(limit)} is sent only if you "
        "say so: add `--allow-large` to the cell, or load it inside of the cell."
    )


def describe_size(size: float) -> str:
    """Return a number of bytes in words."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
