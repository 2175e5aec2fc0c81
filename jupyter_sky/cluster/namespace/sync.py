"""Namespace synchronisation: decides what ranks are sent of the notebook's names.

The rule is that the last assignment wins, on whichever side it was made. A name is sent when it is
new, when it was assigned in the notebook, or when its content has changed there, since it was sent
last. It is not sent while a rank has bound it itself since, nor because its value came back. So
what ranks do to a name stays until the user assigns it again. If that is an object which ranks
have, under whatever name, they keep it as they have changed it, as plain Python would. What was
changed in an object is assigned part by part (`PackedGroup`).

Names that share an object share it on the ranks too: they are sent in one pickle, or refer to what
a rank has already. If only one of them has changed, only that one is sent; the others stay as they
are.

Who owns what
-------------
The user's thread asks what to send and reports assignments; the event loop's thread reports what
became of it. The bookkeeping behind both (`RemoteState`, `Dependencies`, `SentObjects`) belongs to
`NamespaceSync`, and there to the thread that holds its lock:

- `update` and `refresh` hold the lock while they pickle, for as long as that takes. They run in the
  user's thread or in a worker thread, never in the event loop.
- Everything else is a report. It never waits: it is applied at once if the lock is free, and else
  by the thread that holds the lock (`DelegationLock`), before that begins or when it is done. So
  reports are applied whole, one after the other, in the order in which they were made.

Losses of ranks are counted where they are reported, without the lock. So the loop sees that an
update was made before one, and awaits `refresh`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.namespace import missing
from jupyter_sky.cluster.namespace.delegation import DelegationLock
from jupyter_sky.cluster.namespace.dependencies import Dependencies
from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.namespace.items.predefined import of_user
from jupyter_sky.cluster.namespace.rank_values import BEFORE_RUNS, NOW, RankValue, RunEffects
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.cluster.namespace.renamed import renamed
from jupyter_sky.cluster.namespace.returning import merge
from jupyter_sky.cluster.namespace.set_again import SetAgain, SetObject
from jupyter_sky.cluster.namespace.sharing import GroupPacker
from jupyter_sky.cluster.namespace.state_at_turn import StateAtTurn
from jupyter_sky.cluster.namespace.update import NamespaceUpdate, refuse_huge
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import garbage
from jupyter_sky.serialization.folders import HUGE
from jupyter_sky.serialization.object_tokens.kinds import MemoEntries
from jupyter_sky.serialization.object_tokens.sent import SentObjects
from jupyter_sky.serialization.reducers.memory_maps import seen_by_receiver
from jupyter_sky.transport.protocol.messages import NameGroup

_REMEMBERED_BLOBS = 10_000  # digests of what was sent, so that its size is not counted again
_NO_CELL = CellNames()


class NamespaceSync:
    """Finds out what ranks lack of what they need, and remembers what they were sent."""

    def __init__(self) -> None:
        self._remote_state = RemoteState()
        self._dependencies = Dependencies()
        self.asked_variables = self._dependencies.asked_variables  # new values of `--variable`
        self._sent_objects = SentObjects()
        self._set_again = SetAgain(self._remote_state, self._sent_objects)
        self._left_items = missing.LeftItems()
        self._returned: dict[str, int] = {}
        self._sent_blobs: dict[str, None] = {}  # in the order in which they were sent
        self._losses = 0  # counted by the loop alone, after what is lost has been reported
        self._lock = DelegationLock()

    # What is sent

    def update(
        self,
        names: Iterable[str],
        namespace: Mapping[str, Any],
        ranks: Sequence[int],
        *,
        cell: CellNames = _NO_CELL,
        force: bool = False,
        limit: float | None = HUGE,
        at_once: bool = False,
        keep: bool = False,
        kept: ItemCollector | None = None,
    ) -> NamespaceUpdate:
        """Return what ``ranks`` need of ``names``, and of the names that those use in turn.

        It takes as long as pickling does: the event loop calls it in a thread.

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
        at_once
            Whether it overtakes the runs that wait for their turn, and cannot count on them.
        keep
            Whether ranks that lose something before it is sent get the values of now, not of then.
        kept
            What an earlier update has kept (`NamespaceUpdate.kept`): its values are sent.

        Raises
        ------
        UsageError
            When a name cannot be pickled, or all of it is too large; nothing is sent then.
        """
        names, ranks = tuple(names), tuple(ranks)
        with self._lock.held():
            losses = self._count_losses()
            state = self._remote_state.at(BEFORE_RUNS if at_once else NOW)
            # A copy, because other threads may bind and delete names meanwhile.
            collector = kept or self._dependencies.collector(dict(namespace), cell)
            if kept:
                kept.forget_large()
            with seen_by_receiver(self.shares_files), garbage.not_searched_for():
                # What was set before the run, which may wait for its turn.
                self._set_again.apply(collector, state)
            effects = self._remote_state.foresee(cell, namespace)
            update = NamespaceUpdate(
                names=names, namespace=namespace, ranks=ranks, effects=effects, losses=losses
            )
            undecided = state.undecided(ranks)
            missing.unbind(state, update, undecided)
            forced = missing.keys_of(names if force else (), namespace)
            self._dependencies.learn(cell)
            self._add_missing(update, collector, state, forced, undecided - forced)
            update.kept, update.needed = collector if keep else None, collector.visited
        refuse_huge(update.sizes, limit)
        return update

    def is_outdated(self, update: NamespaceUpdate) -> bool:
        """Return whether ranks may lack something that the update leaves out."""
        left = update.effects.left_out or update.effects.left_bound
        return update.losses != self._losses or bool(left)

    async def refresh(self, update: NamespaceUpdate) -> None:
        """Add to a sent update what ranks lack at its turn; they may lose more meanwhile.

        Raises
        ------
        UsageError
            When a name cannot be pickled any more.
        """
        await asyncio.to_thread(self._refresh, update)

    def _refresh(self, update: NamespaceUpdate) -> None:
        state = self._remote_state
        with self._lock.held():
            losses = self._count_losses()
            missing.take_out(state, update)
            collector = missing.collector_of(update, self._dependencies)
            if update.losses != losses:
                collector.forget_large()
            missing.take_turn(state, update, has_lost=update.losses != losses)
            at_turn = state.at(update.effects.turn)
            self._add_missing(update, collector, at_turn, frozenset(), frozenset())
            self._record_delivery(update)
            update.losses = losses

    def _add_missing(
        self,
        update: NamespaceUpdate,
        collector: ItemCollector,
        state: StateAtTurn,
        forced: Set[str],
        undecided: Set[str],
    ) -> None:
        with seen_by_receiver(self.shares_files), garbage.not_searched_for():
            cell, is_all = update.effects.cell, update.left is None
            find, packer = self._dependencies.find, GroupPacker(state, self._sent_objects)
            found = find(update.wanted, collector, state, update.ranks, cell, forced, is_all)
            found += renamed(update, found, collector, state, self._sent_objects)
            self._set_again.note_dropped(found, update.effects.time)
            found, left = missing.leave_out(state, found, update, undecided, self._left_items)
            update.upload_ahead(left, self._sent_blobs)
            lacking = missing.who_lacks(state, found, update.ranks, forced)
            update.given_anew |= missing.given_anew(state, lacking, update.ranks, forced)
            for lacked, members in lacking.items():
                groups = packer.pack(lacked, collector, members, forced, undecided)
                for items, group, ranks in groups:
                    self._set_again.note_sent(items)
                    changes = {rank: group.differences(state, rank, forced) for rank in ranks}
                    update.add(group, changes)
                    update.count(items, self._sent_blobs)

    def names_of(self, rank: int) -> set[str]:
        """Return the names that a rank has, as far as the notebook knows; for the user's thread."""
        with self._lock.held():
            return {name for name in self._remote_state.now.keys(rank) if name.isidentifier()}

    # What became of it: reported by the event loop, and by the user's thread that begins a run

    def sent(self, update: NamespaceUpdate) -> None:
        """Report that an update is on its way; what is made from here on comes after it."""
        self._lock.apply(self._sent, update)

    def lost(self, update: NamespaceUpdate, ranks: Collection[int] | None = None) -> None:
        """Report that an update did not arrive; or only not on some ranks, with new processes."""
        self._lock.apply(self._lost, update, ranks)
        self._losses += 1

    def not_unbound(self, update: NamespaceUpdate) -> None:
        """Report that ranks are sent an update, but not told what to unbind."""
        self._lock.apply(self._remote_state.not_unbound, update.outdated, update.effects)
        update.outdated = {}

    def missed(self, update: NamespaceUpdate, rank: int, arrived: Collection[str]) -> None:
        """Report that a rank did not come to bind what it was sent, but for what ``arrived``."""
        if groups := update.missed(rank, arrived):
            self._lock.apply(self._missed, update, rank, groups)
            self._losses += 1

    def ran(
        self, update: NamespaceUpdate, bound: Mapping[int, Mapping[str, bool]], *, well: bool
    ) -> None:
        """Report what ranks did to the names that their run was watched for.

        Parameters
        ----------
        update
            What the run was sent.
        bound
            The names that each has, each with whether it holds another object than before.
        well
            Whether the run came to its end.
        """
        self._lock.apply(self._remote_state.ended, update.effects, bound, well)
        if not well:
            self._losses += 1  # later runs count on what it would have bound

    def remember(self, rank: int, names: Mapping[str, str]) -> None:
        """Report what a rank has, as its agent tells: the digest of each name."""
        self._lock.apply(self._remote_state.remember, rank, names)

    def forget(self, rank: int) -> None:
        """Report that a rank is a new process, or none: it has an empty namespace."""
        self._lock.apply(self._forget, rank)
        self._losses += 1

    def _sent(self, update: NamespaceUpdate) -> None:
        self._remote_state.unbound(update.outdated)
        self._record_delivery(update)

    def _record_delivery(self, update: NamespaceUpdate) -> None:
        for group, ranks in update.packed:
            shipment, objects = group.message["shipment"], self._sent_objects
            update.new[shipment] = objects.record_sent(ranks, group.shared, group.tokens)
            update.tokens[shipment] = objects.note_digests(group.digests, ranks)
        self._remote_state.expect(update.effects, update.ranks, update.delivered())
        self._sent_blobs.update(dict.fromkeys(update.blobs))
        while len(self._sent_blobs) > _REMEMBERED_BLOBS:
            del self._sent_blobs[next(iter(self._sent_blobs))]
        update.packed.clear()  # which holds on to values of the user's

    def _lost(self, update: NamespaceUpdate, ranks: Collection[int] | None) -> None:
        self._remote_state.not_unbound({} if ranks else update.outdated, update.effects)
        left = update.effects.expected.keys() & (ranks or update.ranks)
        self._sent_objects.lose_digests(update.tokens_in(update.groups), left)
        self._remote_state.cancel(update.effects, ranks)

    def _missed(self, update: NamespaceUpdate, rank: int, groups: Sequence[NameGroup]) -> None:
        names = [name for group in groups for name in group["names"]]
        self._remote_state.lose(update.effects, rank, names)
        self._sent_objects.lose_digests(update.tokens_in(groups), [rank])
        for group in groups:
            self._sent_objects.record_missed(update.new.get(group["shipment"], {}), rank)

    def _forget(self, rank: int) -> None:
        self._remote_state.forget(rank)
        self._sent_objects.forget(rank)

    # What the notebook did: reported by the user's thread

    def merge(
        self, values: Mapping[str, Any], namespace: Mapping[str, Any], rank: int
    ) -> Mapping[str, Any]:
        """Return what names from a rank are bound to: own objects, changed as the rank did."""
        objects, set_again = self._sent_objects, self._set_again
        with self._lock.held(), garbage.not_searched_for():
            return merge(values, namespace, self._remote_state, rank, objects, set_again)

    def returned(
        self,
        names: Collection[str],
        namespace: Mapping[str, Any],
        update: NamespaceUpdate,
        has: Mapping[int, Collection[str]],
    ) -> None:
        """Report that names in the notebook were bound to what a run gave for them.

        They are not sent back: each rank has a value of its own.

        Parameters
        ----------
        names
            The names.
        namespace
            The notebook's, in which they are bound.
        update
            What the run was sent.
        has
            The names that ranks had after the run; others may have them from earlier runs.
        """
        collector, run = ItemCollector(namespace), update.effects.number
        for name in names:
            identity = id(namespace[name])
            try:
                items = [*collector.with_classes(name)]
                values = {each.key: RankValue.of(each, run, self._sent_objects) for each in items}
                shared = items[0].pickled.shared
            except UsageError:
                values, shared = {name: RankValue(run=run, replaces=identity)}, {}
            self._lock.apply(self._bring_back, name, identity, values, shared, update.effects, has)
        self._lock.apply(self._sent_objects.settle, {name: namespace[name] for name in names})

    def _bring_back(
        self,
        name: str,
        identity: int,
        values: Mapping[str, RankValue],
        shared: MemoEntries,
        effects: RunEffects,
        has: Mapping[int, Collection[str]],
    ) -> None:
        self._returned[name] = identity
        ranks = self._remote_state.bring_back(name, identity, values, effects, has)
        self._sent_objects.note_digests([(identity, values[name].digest)], ranks)
        self._sent_objects.record_had(name, ranks, shared)

    def assigned(self, names: Iterable[str], namespace: Mapping[str, Any]) -> None:
        """Report that the notebook has assigned names; they are sent when they are needed next.

        What they have come to hold because it was returned is no assignment.
        """
        found = {name: id(namespace.get(name)) for name in list(names)}
        self._lock.apply(self._assigned, found, namespace)

    def _assigned(self, identities: Mapping[str, int], namespace: Mapping[str, Any]) -> None:
        returned = self._returned
        names = [name for name, here in identities.items() if returned.pop(name, None) != here]
        self._remote_state.assign(names)
        self._sent_objects.rebound(identities, lambda: of_user(namespace))
        for name in names:
            self._dependencies.forget(name)

    def cell_ended(self) -> None:
        """Report that the cell is over in which values may have been returned.

        What is assigned next is an assignment, also of an object that had been returned, of which
        there is only one, like ``0`` and ``None``.
        """
        self._lock.apply(self._returned.clear)

    def set_again(self, objects: Sequence[SetObject]) -> None:
        """Report objects that the notebook has set, perhaps to what they were."""
        self._lock.apply(self._set_again.note, objects)

    def deleted(self, names: Collection[str]) -> None:
        """Report that the notebook has deleted names; the ranks let go of them too."""
        self._lock.apply(self._deleted, frozenset(names))

    def _deleted(self, names: Collection[str]) -> None:
        self._remote_state.delete(names)
        for name in names:
            self._returned.pop(name, None)
            self._dependencies.forget(name)

    def learn(self, objects: Mapping[int, Any], are_named: bool) -> None:
        """Report that objects came back, by token; if they have names, `returned` reports these."""
        self._lock.apply(self._sent_objects.record_returned, objects, are_named)

    @property
    def shares_files(self) -> bool:
        """Whether the ranks see the notebook's files, also its modules."""
        return self._dependencies.shares_files

    @shares_files.setter
    def shares_files(self, shared: bool) -> None:
        self._lock.apply(setattr, self._dependencies, "shares_files", shared)

    def _count_losses(self) -> int:
        """Return how often ranks have lost something; for the holder of the lock, who knows it."""
        losses = self._losses
        self._lock.apply_waiting()  # whatever is counted is among these, or was applied before
        return losses
