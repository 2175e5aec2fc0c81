"""Modules that a rank has imported and that are now installed in another version."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence

_preloaded: frozenset[str] = frozenset()


def remember() -> None:
    """Remember the modules imported so far: every rank of this node is forked with them."""
    global _preloaded
    _preloaded = frozenset(sys.modules)


def outdated(installed: Sequence[tuple[str, str]]) -> list[tuple[str, str, bool]]:
    """Return those of ``installed`` that this process has imported in another version.

    Parameters
    ----------
    installed
        The name and version of each package.

    Returns
    -------
    list of tuple
        The name, the imported version, and whether new ranks have imported that one, too.
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
    """Return those of the packages that this process could not import."""
    importlib.invalidate_caches()
    found = []
    for name in names:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found.append(name)
    return found
