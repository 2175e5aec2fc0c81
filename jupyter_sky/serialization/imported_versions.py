"""Which modules a rank has imported that are installed in another version by now."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence

_preloaded: frozenset[str] = frozenset()


def remember() -> None:
    """Remember what is imported by now: every rank of this node is forked with it."""
    global _preloaded
    _preloaded = frozenset(sys.modules)


def outdated(installed: Sequence[tuple[str, str]]) -> list[tuple[str, str, bool]]:
    """Return which of these packages this process has imported in another version.

    Parameters
    ----------
    installed
        The name and the version of each.

    Returns
    -------
    list of tuple
        The name, the version that was imported, and whether every new rank has that too.
    """
    importlib.invalidate_caches()
    versions = dict(installed)
    found = {}
    for module, names in importlib.metadata.packages_distributions().items():
        for name in names:
            here = getattr(sys.modules.get(module), "__version__", None)
            if name in versions and isinstance(here, str) and here != versions[name]:
                found[name] = (here, module in _preloaded)
    return [(name, *said) for name, said in sorted(found.items())]


def lacking(names: Sequence[str]) -> list[str]:
    """Return those of these packages that this process could not import."""
    importlib.invalidate_caches()
    found = []
    for name in names:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found.append(name)
    return found
