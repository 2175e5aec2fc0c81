"""The versions that decide whether two processes understand each other's pickles."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys

PACKAGES = ("torch", "cloudpickle")


def versions() -> dict[str, str]:
    """Return the versions of this Python and of the packages that it has, importing none."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
