"""Objects that the notebook has set to what they were: ranks may have changed theirs meanwhile.

After ``counts["seen"] = 0`` in a cell that is run again, the notebook's value has the content that
was sent, so nothing tells that ranks need it. All values with such an object are sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from jupyter_sky.cluster.namespace.packing import ItemCollector, may_share
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.object_tokens.sent import SentObjects


class SetAgain:
    """Keeps such objects, by their tokens, until something is sent.

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
        self._sent_objects.drop(self._tokens)
        self._tokens.clear()
