"""Which names get other values while code runs, in the notebook or on a rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Writes:
    """Watches names of a namespace from here on.

    Their values are compared by identity, and not kept alive: what the code lets go of is gone.

    Parameters
    ----------
    names
        What to watch.
    namespace
        Where.
    """

    def __init__(self, names: Iterable[str], namespace: Mapping[str, Any]) -> None:
        self._before = {name: id(namespace[name]) if name in namespace else 0 for name in names}

    def bound(self, namespace: Mapping[str, Any]) -> dict[str, bool]:
        """Return the names that are bound, each with whether it has another value than before."""
        return {
            name: id(namespace[name]) != before
            for name, before in self._before.items()
            if name in namespace
        }
