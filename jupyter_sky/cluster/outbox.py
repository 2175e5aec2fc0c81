"""What ranks are sent of the notebook's names: what is new or changed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_sky.transport import blobs, pickling
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.pickling import Pickled

# A rank's shell has these of its own.
_OF_THE_SHELL = frozenset(
    {"In", "Out", "get_ipython", "exit", "quit", "open", "display"}
    | {"_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh"}
    | {"__builtins__", "__builtin__", "__name__", "__doc__", "__loader__", "__spec__"}
)


@dataclass(frozen=True)
class Parcel:
    """What has to be sent: groups of names, each with the ranks that need it, and their blobs.

    Attributes
    ----------
    losses
        How many namespaces the outbox knew to be lost when the parcel was made.
    """

    groups: list[Message] = field(default_factory=list)
    blobs: dict[str, memoryview] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    namespace: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    losses: int = 0


class Outbox:
    """Remembers, for each rank, the content of every name that it was sent last."""

    def __init__(self) -> None:
        self._sent: dict[int, dict[str, str]] = {}
        self._losses = 0

    def forget(self, rank: int) -> None:
        """Note that a rank has an empty namespace."""
        self._sent.pop(rank, None)
        self._losses += 1

    def current(self, parcel: Parcel) -> Parcel:
        """Return the parcel, with what a rank needs in addition that lost its namespace since."""
        if parcel.losses == self._losses:
            return parcel
        more = self.parcel(parcel.names, parcel.namespace, parcel.ranks)
        self.sent(more)
        return replace(
            parcel, groups=[*parcel.groups, *more.groups], blobs={**parcel.blobs, **more.blobs}
        )

    def remember(self, rank: int, names: Mapping[str, str]) -> None:
        """Note what a rank has, as its agent tells."""
        self._sent[rank] = dict(names)

    def parcel(
        self, names: Iterable[str], namespace: Mapping[str, Any], ranks: Sequence[int]
    ) -> Parcel:
        """Return what ``ranks`` need of ``names``, and of the names that those use in turn.

        Raises
        ------
        UsageError
            When a name cannot be pickled; nothing is sent then.
        """
        names, losses = tuple(names), self._losses
        pickled = _collect(names, namespace)
        groups: list[Message] = []
        needed: dict[str, memoryview] = {}
        for members in _connected(pickled):
            whole = pickled[members[0]]
            if len(members) > 1:
                # Names that share an object are sent as one, or each would get a copy of its own:
                # an optimizer that updates another model than the one that is trained.
                values = tuple(namespace[name] for name in members)
                whole = pickling.dump(values, f"({', '.join(members)})")
            packed, parts = blobs.pack(whole)
            digest = blobs.content(packed)
            lacking = [rank for rank in ranks if not self._has(rank, members, digest)]
            if lacking:
                groups.append(
                    {
                        "names": members,
                        "digest": digest,
                        "packed": packed,
                        "ranks": lacking,
                        "sources": whole.sources,
                    }
                )
                needed.update(parts)
        return Parcel(groups, needed, names, namespace, tuple(ranks), losses)

    def sent(self, parcel: Parcel) -> None:
        """Note that a parcel is on its way; what is made from here on comes after it."""
        for group in parcel.groups:
            for rank in group["ranks"]:
                digests = dict.fromkeys(group["names"], group["digest"])
                self._sent.setdefault(rank, {}).update(digests)

    def lost(self, parcel: Parcel) -> None:
        """Note that a parcel did not arrive."""
        for group in parcel.groups:
            for rank in group["ranks"]:
                for name in group["names"]:
                    self._sent.get(rank, {}).pop(name, None)

    def _has(self, rank: int, names: Sequence[str], digest: str) -> bool:
        have = self._sent.get(rank, {})
        return all(have.get(name) == digest for name in names)


def _collect(names: Iterable[str], namespace: Mapping[str, Any]) -> dict[str, Pickled]:
    """Pickle names, and the names that functions and classes among them use."""
    pickled: dict[str, Pickled] = {}
    waiting = sorted(names, reverse=True)
    while waiting:
        name = waiting.pop()
        if name in pickled or name in _OF_THE_SHELL or name not in namespace:
            continue
        pickled[name] = pickling.dump(namespace[name], name)
        waiting.extend(sorted(pickled[name].needs, reverse=True))
    return pickled


def _connected(pickled: Mapping[str, Pickled]) -> list[list[str]]:
    """Return the names in groups: those that share a mutable object are in one."""
    group: dict[str, list[str]] = {name: [name] for name in pickled}
    owner: dict[int, str] = {}
    for name, value in pickled.items():
        for identity in value.shared:
            first = owner.setdefault(identity, name)
            if group[first] is not group[name]:
                merged = sorted({*group[first], *group[name]})
                group.update(dict.fromkeys(merged, merged))
    unique = {id(members): members for members in group.values()}
    return list(unique.values())
