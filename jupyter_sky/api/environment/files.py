"""Files that describe an environment: for uv, pip or a project; for conda, as far as pip can go."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_sky.api.environment import tools
from jupyter_sky.api.environment.imports import is_editable_folder
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_list
from jupyter_sky.providers.packages import package_name
from jupyter_sky.providers.spec import PipIndex

_PYPI = "https://pypi.org/simple"
_KINDS = "a `uv.lock`, `pyproject.toml`, `requirements.txt` or conda `environment.yml`"


@dataclass
class EnvironmentFile:
    """What a file asks for.

    Attributes
    ----------
    requirements
        The requirements, in pip's syntax.
    indexes
        Their indexes, besides the usual one.
    wheels
        Wheels of local folders that it names.
    left_out
        Sentences about parts of the file that are not applied.
    """

    requirements: list[str] = field(default_factory=list)
    indexes: list[PipIndex] = field(default_factory=list)
    wheels: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add_folder(self, folder: Path) -> None:
        """Include a local folder, as source if it is installed like that here."""
        if is_editable_folder(folder):
            return  # it is sent with the cells that import it, in its state at that time
        wheel = tools.build(folder)
        name, version = wheel.name.split("-")[:2]
        self.requirements.append(f"{name}=={version}")
        self.wheels.append(wheel)


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
    if path.suffix not in kinds:
        raise UsageError(f"{path} says nothing of packages that can be read: name {_KINDS}.")
    if not path.is_file():
        raise UsageError(f"there is no file {path}: name {_KINDS} that is there.")
    return kinds[path.suffix](path)


# uv.lock


def _lock(path: Path) -> EnvironmentFile:
    found = EnvironmentFile()
    for line in tools.export(path.parent).splitlines():
        _add_line(found, line, path)
    by_index: dict[str, list[str]] = {}
    for package in _toml(path).get("package", []):
        index = package.get("source", {}).get("registry", _PYPI)
        if index != _PYPI and "://" in index:
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
    given = {package_name(name): source for name, source in uv.get("sources", {}).items()}
    by_index: dict[str, list[str]] = {}
    for requirement in project.get("dependencies", []):
        name = package_name(requirement)
        source = given.get(name, {})
        if not isinstance(source, dict):
            source = {}
            found.left_out.append(f"{path.name} has several sources of {name}: an index is asked.")
        if "git" in source:
            at = source.get("rev") or source.get("tag") or source.get("branch")
            found.requirements.append(f"{name} @ git+{source['git']}{f'@{at}' if at else ''}")
        elif "path" in source:
            found.add_folder((path.parent / source["path"]).resolve())
        elif "url" in source:
            found.requirements.append(f"{name} @ {source['url']}")
        elif not source.get("workspace"):
            found.requirements.append(requirement)
            if "index" in source:
                by_index.setdefault(source["index"], []).append(name)
    for index in uv.get("index", []):
        named = by_index.get(index.get("name", ""), [])
        if named or not index.get("explicit"):
            found.indexes.append(PipIndex(index["url"], named))
    return found


# requirements.txt

_WITH_VALUE = re.compile(r"(-\w|--[\w-]+)[\s=]+(.+)")


def _requirements(path: Path) -> EnvironmentFile:
    found = EnvironmentFile()
    for line in _text(path).replace("\\\n", " ").splitlines():
        _add_line(found, line, path)
    return found


def _add_line(found: EnvironmentFile, line: str, path: Path) -> None:
    """Add a line of a requirements file."""
    text = re.sub(r"(^|\s)#.*$", "", line)
    text = " ".join(re.sub(r"\s--hash[=\s]\S+", "", text).split())
    if not text:
        return
    option = _WITH_VALUE.fullmatch(text)
    match option.groups() if option else ("", text):
        case ("-r" | "--requirement", name):
            more = _requirements(path.parent / name)
            found.requirements += more.requirements
            found.indexes += more.indexes
            found.wheels += more.wheels
            found.left_out += more.left_out
        case ("-i" | "--index-url" | "--extra-index-url", url):
            if url.rstrip("/") != _PYPI:
                found.indexes.append(PipIndex(url))
        case ("-e" | "--editable", place) if "://" not in place:
            found.add_folder((path.parent / place).resolve())
        case ("", place) if place.startswith((".", "/", "file:")):
            folder = (path.parent / place.split(";")[0].strip().removeprefix("file://")).resolve()
            if folder.suffix == ".whl":
                found.requirements.append("==".join(folder.name.split("-")[:2]))
                found.wheels.append(folder)
            else:
                found.add_folder(folder)
        case ("", requirement) if not requirement.startswith("-"):
            found.requirements.append(requirement)
        case _:
            found.left_out.append(f"{path.name}: `{text}` is not used on nodes.")


# conda

_PIP_NAMES = {"pytorch": "torch", "pytorch-lightning": "pytorch-lightning", "py-xgboost": "xgboost"}
_NOT_NEEDED = frozenset({"python", "pip", "setuptools", "wheel", "ipykernel", "jupyter"})


def _conda(path: Path) -> EnvironmentFile:
    import yaml

    try:
        said = yaml.safe_load(_text(path))
    except yaml.YAMLError:
        raise UsageError(f"{path} is no YAML: correct it, or name {_KINDS}.") from None
    if not isinstance(said, dict) or not isinstance(said.get("dependencies"), list):
        raise UsageError(f"{path} has no list of `dependencies`, as an environment of conda has.")
    found, others = EnvironmentFile(), []
    for each in said["dependencies"]:
        if isinstance(each, dict):
            for line in each.get("pip") or ():
                _add_line(found, str(line), path)
            continue
        name, version = _conda_parts(str(each))
        if name == "python":
            here = ".".join(map(str, sys.version_info[:2]))
            if version and not f"{version}.".startswith(f"=={here}."):
                others.append(f"python {version.lstrip('=')} (nodes have the notebook's {here})")
        elif requirement := _as_pip(name, version):
            found.requirements.append(requirement)
        elif name not in _NOT_NEEDED:
            others.append(name)
    if others:
        found.left_out.append(
            f"{path.name}: nodes do without {format_list(others)}, which conda installs and pip "
            "may not: `--pip NAME` installs those that pip has."
        )
    return found


def _conda_parts(text: str) -> tuple[str, str]:
    """Return the name of a conda package, and its version in pip's syntax."""
    match = re.match(r"(?:\S+::)?([\w.-]+)\s*([<>=!~].*)?", text)
    if match is None:
        return text, ""
    # Conda's `=1.2` means any 1.2, and a build may follow a second `=`.
    name, version = match[1].lower(), (match[2] or "").strip()
    if exact := re.match(r"=(?!=)\s*([^=\s]+)", version):
        number = exact[1].removesuffix(".*").removesuffix("*")
        return name, f"=={number}.*" if number.count(".") < 2 else f"=={number}"
    return name, version.split(" ")[0]


def _as_pip(name: str, version: str) -> str | None:
    """Return pip's requirement for a conda package that is known to be the same."""
    if name in _NOT_NEEDED:
        return None
    if name in _PIP_NAMES:
        return _PIP_NAMES[name] + version
    return name + version if tools.is_python_package(name) else None


# Reading


def _toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is no TOML: {error}.") from None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{path} cannot be read: {said}.") from None
