"""The import path of ranks, and where modules are found on it.

Every notebook's folder comes first in its import path, and usually has nothing that ranks preload.
So two paths are compared by where modules are found on them, not by their entries.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import all_suffixes
from pathlib import Path

_INSTALLED = (".dist-info", ".egg-info")


def own_entries() -> list[str]:
    """Return the interpreter's own import path, without ``PYTHONPATH``."""
    inherited = _inherited(os.environ)
    return [entry for entry in sys.path if entry not in inherited]


def import_path(first: Sequence[str], env: Mapping[str, str], own: Sequence[str]) -> list[str]:
    """Return an import path.

    Parameters
    ----------
    first
        Entries that come first.
    env
        The environment variables of the process; entries of ``PYTHONPATH`` come next.
    own
        The interpreter's own entries, from `own_entries`.
    """
    return list(dict.fromkeys([*first, *_inherited(env), *own]))


def with_packages(first: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the entries of an import path in which packages are installed.

    An optional package that was not found may change another one, without leaving a trace.
    """
    return [entry for entry in import_path(first, env, ()) if _has_packages(entry)]


def locations(names: Collection[str], path: Sequence[str]) -> dict[str, str]:
    """Return the entry of an import path in which each top-level module is found.

    Parameters
    ----------
    names
        The modules; those that are not found are left out.
    path
        The import path. An archive on it is assumed to have every module.
    """
    found: dict[str, str] = {}
    left, suffixes = set(names), set(all_suffixes())
    for entry in path:
        try:
            files = os.listdir(entry)  # noqa: PTH208 - thousands of names
        except NotADirectoryError:
            found[entry] = entry
            continue
        except OSError:
            continue
        for file in files:
            name, dot, suffix = file.partition(".")
            if name in left and (dot + suffix in suffixes if dot else _is_package(entry, name)):
                found[name] = entry
        left.difference_update(found)
    return found


def _is_package(entry: str, name: str) -> bool:
    # A folder without this file is found only if no other entry has a module of that name.
    return Path(entry, name, "__init__.py").exists()


def _has_packages(entry: str) -> bool:
    try:
        return any(each.suffix in _INSTALLED for each in Path(entry).iterdir())
    except NotADirectoryError:
        return True
    except OSError:
        return False


def _inherited(env: Mapping[str, str]) -> list[str]:
    return [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
