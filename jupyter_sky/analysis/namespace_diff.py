"""Which names get other values while code runs, in the notebook or on a rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NamespaceDiff:
    """Watches a namespace from here on.

    Values are compared by identity, and not kept alive: what the code lets go of is gone. So it
    does not matter how a name is bound: by an assignment, ``from module import *`` or ``%run``.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._before = _identities(namespace)

    def changed(self) -> set[str]:
        """Return names that have another value than before, or that are new."""
        before = self._before
        now = _identities(self._namespace)
        return {name for name, identity in now.items() if before.get(name) != identity}

    def deleted(self) -> set[str]:
        """Return names that are gone."""
        return self._before.keys() - self._namespace.keys()


def _identities(namespace: Mapping[str, Any]) -> dict[str, int]:
    # A copy, because other threads may bind names meanwhile.
    return {name: id(value) for name, value in dict(namespace).items()}
