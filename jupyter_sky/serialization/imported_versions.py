"""Modules that a rank has imported and that are now installed in another version."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Collection, Sequence

_preloaded: frozenset[str] = frozenset()


def remember() -> None:
    """Remember the modules imported so far: every rank of this node is forked with them."""
    global _preloaded
    _preloaded = frozenset(sys.modules)


def outdated(
    installed: Sequence[tuple[str, str]], rebuilt: Collection[str] = ()
) -> list[tuple[str, str, bool]]:
    """Return those of ``installed`` that this process has imported as they were before.

    Parameters
    ----------
    installed
        The name and version of each package; names as uv writes them.
    rebuilt
        Those of them that have other content, be it in the same version.

    Returns
    -------
    list of tuple
        The name, the imported version, and whether new ranks have imported that one, too.
    """
    importlib.invalidate_caches()
    versions = dict(installed)
    found = {}
    for module, names in importlib.metadata.packages_distributions().items():
        if module not in sys.modules:
            continue
        for name in map(normal_name, names):
            if name not in versions:
                continue
            said = getattr(sys.modules[module], "__version__", None)
            here = said if isinstance(said, str) else versions[name]
            if here != versions[name] or name in rebuilt:
                found[name] = (here, module in _preloaded)
    return [(name, *said) for name, said in sorted(found.items())]


def normal_name(name: str) -> str:
    """Return the name of a package as pip and uv compare it, and as uv writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


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
