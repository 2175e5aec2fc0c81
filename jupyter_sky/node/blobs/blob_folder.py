"""The folder of blobs, while the agent runs: made again if it goes, unless somebody else was first.

It is in shared memory, where everybody may make folders. systemd removes it with the last session
of the user, as when the notebook's connection ends, and its name is known by then.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.node.blobs.partial_blob import remove_blob
from jupyter_sky.node.blobs.store import BlobStore

_IS_BLOB = re.compile("[0-9a-f]{64}")  # the digest that is its name


class BlobFolder:
    """Looks after the folder of blobs.

    Parameters
    ----------
    store
        The blobs.
    forgotten
        Called with the blobs that are gone.
    claim
        Marks the folder as the agent's.
    end_because
        Ends the node, with a reason.
    """

    def __init__(
        self,
        store: BlobStore,
        forgotten: Callable[[list[str]], None],
        claim: Callable[[Path], None],
        end_because: Callable[[str], None],
    ) -> None:
        self._store = store
        self._forgotten = forgotten
        self._claim = claim
        self._end_because = end_because
        self._is_given_up = False

    def check(self, is_idle: bool = False) -> None:
        """Make the folder again if it is gone; end the node if it is another user's.

        Parameters
        ----------
        is_idle
            Whether no rank is at work: then what they have written and not named is removed, as
            where a value was not written whole.
        """
        if self._is_given_up:
            return
        with contextlib.suppress(OSError):  # of what cannot be made, a run says why it fails
            if self._store.is_taken:
                self._is_given_up = True
                self._end_because(
                    f"another user of the node has taken {self._store.folder}, where values were"
                )
            elif not self._store.folder.is_dir():
                self._forgotten(self._store.restore())
                self._claim(self._store.folder)
            elif is_idle:
                self._remove_unknown()

    def _remove_unknown(self) -> None:
        for path in list(self._store.folder.iterdir()):
            if path.name not in self._store and _IS_BLOB.fullmatch(path.name):
                remove_blob(path)

    def give_up(self) -> None:
        """Leave it as it is: the node ends."""
        self._is_given_up = True
