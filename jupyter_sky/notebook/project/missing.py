"""Advice if a rank lacks a package or a file that the notebook has."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import sys
from pathlib import Path

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.formatting import format_bytes

_NO_MODULE = re.compile(r"No module named '(\w+)'")
_NO_NAME = re.compile(r"cannot import name '\w+' from '(\w+)")
_NO_FILE = re.compile(r"No such file or directory: '([^']+)'")


def advice(error: BaseException, cluster: Cluster) -> str:
    """Return advice about a rank's error; empty if there is none.

    Parameters
    ----------
    error
        The error.
    cluster
        The cluster of the rank.
    """
    text = str(error)
    if isinstance(error, ModuleNotFoundError):
        return _about_package(found[1], cluster) if (found := _NO_MODULE.search(text)) else ""
    if isinstance(error, ImportError):
        found = _NO_NAME.search(text)
        return _about_version(found[1], cluster) if found else ""
    if isinstance(error, FileNotFoundError) and (found := _NO_FILE.search(text)):
        return _about_file(found[1], cluster)
    return ""


def _about_package(module: str, cluster: Cluster) -> str:
    if module in sys.stdlib_module_names:
        return ""
    if found := _distribution(module):
        name, version = found
        return (
            f"the notebook has {name} {version}: `%sky pip install {name}=={version}` installs it "
            "on the nodes"
        )
    if _is_module_here(module):
        return ""
    return (
        f"the notebook has no {module} either: `%sky pip install {module}` installs it for "
        f"{cluster.name}, if that is what its package is called"
    )


def _about_version(module: str, cluster: Cluster) -> str:
    found = _distribution(module)
    if not found or cluster.sync.shares_files:
        return ""
    name, version = found
    return (
        f"the notebook has {name} {version}: if the nodes have another version, "
        f"`%sky pip install {name}=={version}` changes that"
    )


def _about_file(name: str, cluster: Cluster) -> str:
    if cluster.sync.shares_files:
        return ""
    try:
        path = Path(name).expanduser()
        if not path.exists():
            return ""
        size = f" ({format_bytes(path.stat().st_size)})" if path.is_file() else ""
    except (OSError, ValueError, RuntimeError):
        return ""
    where = "to the folder that ranks begin in" if path.is_absolute() else "to the nodes"
    return f"the notebook has {name}{size}: `%sky put {shlex.quote(name)}` sends it {where}"


def _distribution(module: str) -> tuple[str, str] | None:
    """Return name and version of the installed package that contains a module."""
    names = importlib.metadata.packages_distributions().get(module)
    return (names[0], importlib.metadata.version(names[0])) if names else None


def _is_module_here(module: str) -> bool:
    return module in sys.modules or any(
        Path(folder or ".", each).exists()
        for folder in sys.path
        for each in (module, f"{module}.py")
    )
