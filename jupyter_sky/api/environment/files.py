"""Files that describe an environment: for uv, pip or a project; for conda, as far as pip can go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from jupyter_sky.api.environment import tools
from jupyter_sky.api.environment.conda import read_conda
from jupyter_sky.api.environment.requirements import (
    PYPI,
    EnvironmentFile,
    add_line,
    add_requirements,
    read_text,
)
from jupyter_sky.errors import UsageError
from jupyter_sky.providers.packages import extras_and_marker, package_name
from jupyter_sky.providers.spec import PipIndex

_KINDS = "a `uv.lock`, `pyproject.toml`, `requirements.txt` or conda `environment.yml`"


def read_file(path: Path) -> EnvironmentFile:
    """Read a file that describes an environment.

    Raises
    ------
    UsageError
        If it cannot be read, or its kind is unknown.
    """
    kinds: Mapping[str, Callable[[Path], EnvironmentFile]] = {
        ".lock": _lock,
        ".toml": _project,
        ".txt": _requirements,
        ".in": _requirements,
        ".yml": _conda,
        ".yaml": _conda,
    }
    if path.suffix in kinds and not path.is_file():
        raise UsageError(f"there is no file {path}: name {_KINDS} that is there.")
    if path.suffix not in kinds or (path.suffix == ".lock" and path.name != "uv.lock"):
        raise UsageError(f"{path} says nothing of packages that can be read: name {_KINDS}.")
    return kinds[path.suffix](path)


def _requirements(path: Path) -> EnvironmentFile:
    found = EnvironmentFile()
    add_requirements(found, path)
    return found


def _conda(path: Path) -> EnvironmentFile:
    return read_conda(path, _KINDS)


# uv.lock


def _lock(path: Path) -> EnvironmentFile:
    found = EnvironmentFile()
    for line in tools.export(path.parent).splitlines():
        add_line(found, line, path)
    by_index: dict[str, list[str]] = {}
    for package in _toml(path).get("package", []):
        index = package.get("source", {}).get("registry", PYPI)
        if index != PYPI and "://" in index:
            by_index.setdefault(index, []).append(package["name"])
    found.indexes += [PipIndex(url, sorted(set(names))) for url, names in by_index.items()]
    return found


# pyproject.toml


def _project(path: Path) -> EnvironmentFile:
    said = _toml(path)
    project, uv = said.get("project"), said.get("tool", {}).get("uv", {})
    if not isinstance(project, dict):
        raise UsageError(f"{path} has no [project]: its `dependencies` are what nodes would get.")
    found = EnvironmentFile()
    if "dependencies" in project.get("dynamic", []):
        found.left_out.append(f"{path.name} leaves its dependencies to its build: nodes get none.")
    dependencies = project.get("dependencies", [])
    if not isinstance(dependencies, list) or not all(
        isinstance(each, str) for each in dependencies
    ):
        raise UsageError(f'{path}: `dependencies` should be a list of texts, like ["einops"].')
    given = {package_name(name): source for name, source in uv.get("sources", {}).items()}
    by_index: dict[str, list[str]] = {}
    for requirement in dependencies:
        name = package_name(requirement)
        source = given.get(name, {})
        if not isinstance(source, dict):
            source = {}
            found.left_out.append(f"{path.name} has several sources of {name}: an index is asked.")
        _add_of_source(found, requirement, source, path)
        if "index" in source:
            by_index.setdefault(source["index"], []).append(name)
    for index in uv.get("index", []):
        named = by_index.get(index.get("name", ""), [])
        if named or not index.get("explicit"):
            found.indexes.append(PipIndex(index["url"], named))
    return found


def _add_of_source(
    found: EnvironmentFile, requirement: str, source: Mapping[str, Any], path: Path
) -> None:
    """Add a dependency of a project, from where uv takes it."""
    try:
        asked = Requirement(requirement)
    except InvalidRequirement as error:
        first = str(error).partition("\n")[0]
        raise UsageError(f"{path}: {requirement!r} is no requirement ({first}).") from None
    extras, marker = extras_and_marker(asked)
    inside = f"#subdirectory={source['subdirectory']}" if source.get("subdirectory") else ""
    name = package_name(asked.name)
    if "git" in source:
        at = source.get("rev") or source.get("tag") or source.get("branch")
        url = f"git+{source['git']}{f'@{at}' if at else ''}{inside}"
        found.requirements.append(f"{name}{extras} @ {url}{marker}")
    elif "url" in source:
        found.requirements.append(f"{name}{extras} @ {source['url']}{inside}{marker}")
    elif "path" in source:
        found.add_local((path.parent / source["path"]).resolve(), extras, marker)
    elif source.get("workspace"):
        if not found.add_installed(name):
            found.left_out.append(
                f"{path.name}: nodes do without {name} of its workspace: install it here with "
                "`uv sync`, and its modules are sent with the cells that import them."
            )
    else:
        found.add(requirement, path)


# Reading


def _toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}.") from None
