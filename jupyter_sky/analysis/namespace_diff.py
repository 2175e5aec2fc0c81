"""The difference between a namespace before and after code has run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NamespaceDiff:
    """Records the identities of a namespace's values, to compare them later.

    It finds names however they were bound: by an assignment, ``from module import *`` or ``%run``.
    It does not keep the values alive.

    Parameters
    ----------
    namespace
        The namespace, before the code runs.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._before = identities(namespace)

    def changed(self) -> set[str]:
        """Return the names that are new or bound to another object than before."""
        before, now = self._before, identities(self._namespace)
        # Usually nothing changed. This is called before and after each run, so check that first.
        if before == now:
            return set()
        former = map(before.get, now)
        pairs = zip(now, now.values(), former, strict=True)
        return {name for name, identity, was in pairs if was != identity and _counts(name)}

    def deleted(self) -> set[str]:
        """Return the names that are gone."""
        gone = self._before.keys() - self._namespace.keys()
        return {name for name in gone if _counts(name)} if gone else gone


def identities(namespace: Mapping[str, Any]) -> dict[str, int]:
    """Return the identity of the object that each name is bound to."""
    # A copy, since other threads may bind names meanwhile.
    everything = dict(namespace)
    return dict(zip(everything, map(id, everything.values()), strict=True))


def _counts(name: Any) -> bool:
    """Return whether a key is a name, other than those that IPython numbers by cell (``_i3``).

    There are more of these with every cell, and nobody rebinds them. A key that is not a string, as
    in ``globals()[5] = 1``, cannot be named by code.
    """
    if not isinstance(name, str):
        return False
    return name[:1] != "_" or not name[1:].removeprefix("i").isdecimal()
