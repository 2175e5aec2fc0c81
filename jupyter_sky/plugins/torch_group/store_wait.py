"""Waits for keys of the group's store, so that Stop is heard."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store


def wait_for_keys(store: Store, keys: list[str], seconds: float) -> bool:
    """Wait for keys by polling: the store's own wait is in C++, and could not be interrupted.

    Parameters
    ----------
    store
        The store.
    keys
        The keys.
    seconds
        How long to wait for them.

    Returns
    -------
    bool
        Whether all of them are there.
    """
    until = time.monotonic() + seconds
    pause = 0.001
    while not store.check(keys):
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True
