"""What ranks import later, and when the process that forks them imports it for all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable

LATER = {"torch": "torch._dynamo"}
"""What the first optimizer of a process imports: a second, for each rank by itself."""


def wanted_soon(preload: Iterable[str]) -> tuple[str, ...]:
    """Return what a cluster's ranks will import, as this process, the notebook, has done it too.

    Parameters
    ----------
    preload
        Modules that are imported anyway, before ranks are forked.
    """
    later = (LATER.get(name) for name in preload)
    return tuple(dict.fromkeys(name for name in later if name in sys.modules and name))
