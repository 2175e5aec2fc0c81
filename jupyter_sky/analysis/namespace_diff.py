"""The difference between a namespace before and after code has run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NamespaceDiff:
    """Records the identities of a namespace's values, to compare them later.

    It does not matter how a name is bound: by an assignment, ``from module import *`` or ``%run``.
    The values are not kept alive.

    Parameters
    ----------
    namespace
        The namespace, as it is before the code runs.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._before = identities(namespace)

    def changed(self) -> set[str]:
        """Return the names that are bound to another object than before, or that are new."""
        before, now = self._before, identities(self._namespace)
        # Mostly nothing was, which is seen at once: it is asked before and after each run.
        if before == now:
            return set()
        return {
            name for name, identity in now.items() if before.get(name) != identity and _counts(name)
        }

    def deleted(self) -> set[str]:
        """Return the names that are gone."""
        gone = self._before.keys() - self._namespace.keys()
        return {name for name in gone if _counts(name)} if gone else gone


def identities(namespace: Mapping[str, Any]) -> dict[str, int]:
    """Return which object each name stands for."""
    # A copy, because other threads may bind names meanwhile.
    everything = dict(namespace)
    return dict(zip(everything, map(id, everything.values()), strict=True))


def _counts(name: Any) -> bool:
    """Return whether it is a name, and none that IPython numbers with each cell, like ``_i3``.

    Of these there are more and more, and nobody binds them to something else. What is no text, as
    in ``globals()[5] = 1``, no code can name.
    """
    if not isinstance(name, str):
        return False
    return name[:1] != "_" or not name[1:].removeprefix("i").isdecimal()
