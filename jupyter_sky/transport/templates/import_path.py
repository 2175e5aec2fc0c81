"""What ranks import from, and where modules are found there.

Notebooks lie in folders of their own, which come first in their import paths, and mostly nothing
that ranks need is in them. So two paths are told apart by what is found where, and not by their
entries.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import all_suffixes
from pathlib import Path

_INSTALLED = (".dist-info", ".egg-info")


def own_entries() -> list[str]:
    """Return what this interpreter imports from by itself: without ``PYTHONPATH``."""
    inherited = _inherited(os.environ)
    return [entry for entry in sys.path if entry not in inherited]


def import_path(first: Sequence[str], env: Mapping[str, str], own: Sequence[str]) -> list[str]:
    """Return an import path.

    Parameters
    ----------
    first
        What is looked through first.
    env
        The variables of the process; ``PYTHONPATH`` among them is looked through next.
    own
        What the interpreter has by itself, of `own_entries`.
    """
    return list(dict.fromkeys([*first, *_inherited(env), *own]))


def with_packages(first: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return those entries of an import path that packages are installed in.

    A package that is looked for and not found can change another one, and that leaves no trace.
    """
    return [entry for entry in import_path(first, env, ()) if _has_packages(entry)]


def locations(names: Collection[str], path: Sequence[str]) -> dict[str, str]:
    """Return the entry of an import path in which each top-level module is found.

    Parameters
    ----------
    names
        The modules; those that are not there are left out.
    path
        The import path. An archive in it counts as one that has everything.
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
    # One without this file is found only where no other of its name is.
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
