"""Values that are sent again though their content is what was sent.

After ``counts["seen"] = 0`` in a cell that is run again, ranks may have something else there, and
after ``del table.rows``, they have the value of the cached property that came with the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jupyter_sky.cluster.namespace.dependencies import ItemCollector
from jupyter_sky.cluster.namespace.packing import NamespaceItem, may_share
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.object_tokens.sent import SentObjects


class SetAgain:
    """Keeps the objects that the notebook has set, by their tokens, until something is sent.

    It belongs to `NamespaceSync`, whose lock has to be held.

    Parameters
    ----------
    remote_state
        What the ranks have.
    sent_objects
        The objects that they have.
    """

    def __init__(self, remote_state: RemoteState, sent_objects: SentObjects) -> None:
        self._remote_state = remote_state
        self._sent_objects = sent_objects
        self._tokens: set[int] = set()
        self._cached: dict[str, Sequence[Mapping[str, object]]] = {}

    def note(self, objects: Sequence[Any]) -> None:
        """Note objects that the notebook has set."""
        shared = {id(each): (0, each) for each in objects}
        self._tokens.update(self._sent_objects.tokens_of(shared).values())

    def apply(self, collector: ItemCollector) -> None:
        """Have the values with these objects count as assigned, so that they are sent again."""
        if not self._tokens:
            return
        names = set()
        for name in self._remote_state.names_anywhere():
            if may_share(collector.namespace.get(name)):
                with suppress(UsageError):  # it cannot be pickled any more
                    tokens = self._sent_objects.tokens_of(collector.item(name).pickled.shared)
                    if not self._tokens.isdisjoint(tokens.values()):
                        names.add(name)
        self._remote_state.assign(names)
        self._forget_objects()

    def note_sent(self, items: Iterable[NamespaceItem]) -> None:
        """Note the values of cached properties that are sent with values."""
        self._cached.update({item.key: item.pickled.omitted for item in items})

    def note_dropped(self, items: Iterable[NamespaceItem]) -> None:
        """Have values count as assigned whose properties are not cached any more as they were."""
        dropped = [item for item in items if self._has_dropped(item)]
        if dropped:
            self._remote_state.assign([item.key for item in dropped])
            self.note([item.value for item in dropped])
            self._forget_objects()

    def _has_dropped(self, item: NamespaceItem) -> bool:
        # The same content has the same objects, in the same order.
        pairs = zip(self._cached.get(item.key, ()), item.pickled.omitted, strict=False)
        return any(not former.items() <= now.items() for former, now in pairs)

    def _forget_objects(self) -> None:
        self._sent_objects.drop(self._tokens)
        self._tokens.clear()
