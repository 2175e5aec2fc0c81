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
        before = self._before
        now = identities(self._namespace)
        return {name for name, identity in now.items() if before.get(name) != identity}

    def deleted(self) -> set[str]:
        """Return the names that are gone."""
        return self._before.keys() - self._namespace.keys()


def identities(namespace: Mapping[str, Any]) -> dict[str, int]:
    """Return which object each name stands for, without what IPython numbers with each cell.

    Of ``_3`` and ``_i3`` there are more and more, and nobody binds them to something else.
    """
    # A copy, because other threads may bind names meanwhile.
    everything = dict(namespace).items()
    # Most names are of no such kind, which is seen here: it is asked before and after each run.
    return {
        name: id(value)
        for name, value in everything
        if (type(name) is str and name[:1] != "_") or not _is_numbered(name)
    }


def _is_numbered(name: Any) -> bool:
    if not isinstance(name, str):  # `globals()[5] = 1` can be written, too
        return False
    return name[:1] == "_" and name[1:].removeprefix("i").isdecimal()
