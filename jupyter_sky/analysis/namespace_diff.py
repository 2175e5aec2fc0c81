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
            name
            for name, identity in now.items()
            if before.get(name) != identity and not _is_numbered(name)
        }

    def deleted(self) -> set[str]:
        """Return the names that are gone."""
        gone = self._before.keys() - self._namespace.keys()
        return {name for name in gone if not _is_numbered(name)} if gone else gone


def identities(namespace: Mapping[str, Any]) -> dict[str, int]:
    """Return which object each name stands for."""
    # A copy, because other threads may bind names meanwhile.
    everything = dict(namespace)
    return dict(zip(everything, map(id, everything.values()), strict=True))


def _is_numbered(name: Any) -> bool:
    """Return whether IPython numbers a name with each cell, like ``_3`` and ``_i3``.

    Of these there are more and more, and nobody binds them to something else.
    """
    if not isinstance(name, str):  # `globals()[5] = 1` can be written, too
        return False
    return name[:1] == "_" and name[1:].removeprefix("i").isdecimal()
