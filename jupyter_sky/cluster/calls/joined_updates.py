"""The names that calls need which join a run: each rank gets them with its next call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.transport.protocol.messages import NameGroup


class JoinedUpdates:
    """What ranks need for the calls of a run, and what of it they were not sent yet.

    Parameters
    ----------
    first
        What they are sent when they begin the run.
    """

    def __init__(self, first: NamespaceUpdate) -> None:
        self._all = [first]
        self._names = set(first.names)
        self._unsent: dict[int, list[NameGroup]] = defaultdict(list)
        self._on_their_way: dict[int, Sequence[NameGroup]] = {}  # by the number of a call
        self._missed: dict[int, list[NameGroup]] = defaultdict(list)

    @property
    def all(self) -> Sequence[NamespaceUpdate]:
        """What a new process of a rank needs; those that are added meanwhile are in it too."""
        return self._all

    @property
    def joined(self) -> Sequence[NamespaceUpdate]:
        """The updates that were added, without the one with which the run began."""
        return self._all[1:]

    def add(self, update: NamespaceUpdate, is_sent: bool = False) -> None:
        """Add an update; the ranks get its names with their next calls, unless it was sent."""
        if not update.groups and self._names.issuperset(update.names):
            # Ranks have all of it, or get it with the others. Of such calls there are thousands.
            return
        self._names.update(update.names)
        self._all.append(update)
        for group in () if is_sent else update.groups:
            for rank in group["ranks"]:
                self._unsent[rank].append(group)

    def take(self, rank: int, number: int) -> tuple[Sequence[NameGroup], Mapping[str, memoryview]]:
        """Return what to send a rank with its next call: names, and their large parts.

        Parameters
        ----------
        rank
            The rank.
        number
            The number of the call, which is that of its answer.
        """
        groups = self._unsent.pop(rank, [])
        if not groups:
            return (), {}
        self._on_their_way[number] = groups
        return groups, {key: data for each in self.joined for key, data in each.blobs.items()}

    def put_back(self, rank: int, number: int) -> None:
        """Note that the names of a call have not reached its rank: the next call brings them."""
        self._unsent[rank][:0] = self._on_their_way.pop(number, ())

    def answered(self, rank: int, number: int, are_missed: bool) -> None:
        """Note whether a rank could bind the names of a call."""
        groups = self._on_their_way.pop(number, ())
        if are_missed:
            self._missed[rank] += groups

    def begin_again(self, rank: int) -> None:
        """Note that a rank has a new process, which is sent all names again."""
        groups = (group for update in self.joined for group in update.groups)
        self._unsent[rank] = [group for group in groups if rank in group["ranks"]]
        self._missed.pop(rank, None)

    def let_go(self, but: Sequence[NamespaceUpdate]) -> None:
        """Release the user's values, because the run has ended; some updates go into another."""
        for update in self.joined:
            if not any(each is update for each in but):
                update.let_go()

    def received(self, update: NamespaceUpdate, rank: int) -> Collection[str]:
        """Return the shipments of an update that a rank was sent, but for what it said to miss."""
        lacking = [*self._unsent.get(rank, ()), *self._missed.get(rank, ())]
        lacks = {group["shipment"] for group in lacking}
        return [group["shipment"] for group in update.groups if group["shipment"] not in lacks]
