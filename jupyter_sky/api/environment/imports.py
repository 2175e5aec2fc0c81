"""The packages that a notebook or script imports, and where they came from."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from types import ModuleType
from typing import Any

from jupyter_sky.providers.packages import package_name
from jupyter_sky.serialization.user_modules import imports_of

# Packages of a notebook itself, and those that nodes have in any case.
_OURS = frozenset({"ipykernel", "ipython", "jupyter-sky", "pip", "setuptools"})


@dataclass(frozen=True)
class Package:
    """An installed package.

    Attributes
    ----------
    name, version
        As in pip; the version without its build tag, like ``+cpu``.
    build
        The build tag: ``"cpu"``, ``"cu128"``; empty if it has none.
    is_from_index
        Whether it came from an index, so that other machines can install it, too.
    distribution
        Its files and metadata.
    """

    name: str
    version: str
    build: str
    is_from_index: bool
    distribution: Distribution

    @property
    def requirement(self) -> str:
        """This version of it, in pip's syntax."""
        return f"{self.name}=={self.version}"


def modules_in(namespace: Mapping[str, Any]) -> frozenset[str]:
    """Return the modules in a namespace, and those of its classes and functions."""
    found = set()
    for name, value in namespace.items():
        if name.startswith("_"):
            continue
        if isinstance(value, ModuleType):
            found.add(value.__name__)
            continue
        made = value if isinstance(value, type) or inspect.isroutine(value) else type(value)
        if isinstance(module := getattr(made, "__module__", None), str):
            found.add(module)
    return frozenset(found)


_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([\w., \t]+))", re.M)


def modules_typed(sources: Iterable[str]) -> frozenset[str]:
    """Return the modules that code imports, even in functions or code that did not run."""
    found: set[str] = set()
    for source in sources:
        for one, several in _IMPORT.findall(source):
            names = (
                [one] if one else [each.split()[0] for each in several.split(",") if each.strip()]
            )
            found.update(name for name in names if not name.startswith("."))
    return frozenset(found - {""})


def imports_from(folder: Path, modules: Iterable[str]) -> frozenset[str]:
    """Return modules, and what the user's own among them import, where a folder is searched first.

    As in a script of that folder. The user's own are not among them.
    """
    first = str(folder)
    sys.path.insert(0, first)
    try:
        return imports_of(modules)
    finally:
        sys.path.remove(first)


def packages(modules: Iterable[str]) -> list[Package]:
    """Return the packages of modules, and those that the user's own modules import.

    Editable packages count as the user's own modules, which are sent as source.

    Parameters
    ----------
    modules
        Names of modules, like ``package.module``.
    """
    every = {each for each in imports_of(modules) if _is_installed(each)}
    if not every:
        return []
    known = importlib.metadata.packages_distributions()
    names = {name for each in every for name in _names(each, known)}
    found = {}
    for name in sorted(names, key=package_name):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if package_name(name) not in _OURS:
                found[package_name(name)] = installed(name)
    return [each for each in found.values() if not is_editable(each.distribution)]


def installed(name: str) -> Package:
    """Return a package by its name.

    Raises
    ------
    importlib.metadata.PackageNotFoundError
        If it is not installed here.
    """
    distribution = importlib.metadata.distribution(name)
    version, _, build = distribution.version.partition("+")
    # Nodes get the build of an index then, as that of conda does not work there.
    from_index = _origin(distribution) is None or _needs_conda(distribution)
    return Package(distribution.metadata["Name"], version, build, from_index, distribution)


def _is_installed(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in ("__main__", "builtins")


def _names(module: str, known: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the packages of a module: one, or all that share its top-level name."""
    top = module.partition(".")[0]
    names = list(dict.fromkeys(known.get(top, ())))
    if len(names) < 2:
        yield from names
        return
    files = {name: {f"{each}" for each in importlib.metadata.files(name) or ()} for name in names}
    # Several may have the file that makes a folder a package, and nothing else in common.
    common = {each for each in set.intersection(*files.values()) if "__init__." not in each}
    if any(each.startswith((f"{top}/", f"{top}.")) for each in common):
        # Variants of one package, as with and without windows: the last one is that which is here.
        yield max(names, key=_installed_at)
        return
    path = module.replace(".", "/")
    for name in names:
        # A top-level name that several packages share does not tell which of them is meant.
        if module != top and any(each.startswith((f"{path}/", f"{path}.")) for each in files[name]):
            yield name


def _installed_at(name: str) -> float:
    """Return when a package was installed: when the folder of its metadata was filled."""
    files = importlib.metadata.files(name) or ()
    about = next((each for each in files if each.parent.suffix == ".dist-info"), None)
    return Path(str(about.locate())).parent.stat().st_mtime if about else 0.0


def _needs_conda(distribution: Distribution) -> bool:
    """Return whether conda has compiled it: it needs libraries that only conda installs.

    conda records the folder of the build as the package's origin, which otherwise means that no
    index has it.
    """
    by_conda = (distribution.read_text("INSTALLER") or "").strip() == "conda"
    about = distribution.read_text("WHEEL") or ""
    return by_conda and "Root-Is-Purelib: true" not in about.splitlines()


def _origin(distribution: Distribution) -> dict[str, Any] | None:
    """Return where a package came from, if not from an index."""
    text = distribution.read_text("direct_url.json")
    return dict(json.loads(text)) if text else None


def editable_distributions(folder: Path) -> list[Distribution]:
    """Return the packages that are installed here from source in a folder (editable)."""
    address = folder.resolve().as_uri()
    return [
        each
        for each in importlib.metadata.distributions()
        if is_editable(each) and (_origin(each) or {}).get("url") == address
    ]


def is_editable(distribution: Distribution) -> bool:
    """Return whether a package is installed from source in a folder (editable)."""
    origin = _origin(distribution) or {}
    return bool(origin.get("dir_info", {}).get("editable"))
