"""The versions that must match for two processes to read each other's messages and pickles."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys

import jupyter_sky

PACKAGES = ("torch", "cloudpickle")


def versions() -> dict[str, str]:
    """Return the versions of Python, jupyter_sky and the relevant packages in this environment.

    This imports nothing, and does not read jupyter_sky's metadata: hosts only have its code.
    """
    found = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "jupyter_sky": jupyter_sky.__version__,
    }
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
