"""The versions that decide whether two processes understand each other's messages and pickles."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys

import jupyter_sky

PACKAGES = ("torch", "cloudpickle")


def versions() -> dict[str, str]:
    """Return the versions of Python, of jupyter_sky and of the packages that are here.

    Nothing is imported for it, and of jupyter_sky no metadata is read: hosts have its code alone.
    """
    found = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "jupyter_sky": jupyter_sky.__version__,
    }
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
