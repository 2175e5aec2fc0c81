"""Files that describe an environment: for uv, pip or a project; for conda, as far as pip can go."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from jupyter_sky.api.environment import tools
from jupyter_sky.api.environment.imports import dependencies, editable_in
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_list, without_secrets
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
    needed
        What packages depend on that are installed here as editable.
    indexes
        Their indexes, besides the usual one.
    wheels
        Wheels of local folders that it names.
    left_out
        Sentences about parts of the file that are not applied.
    has_dependencies
        Whether it names what its packages need, too, as a lock file does.
    """

    requirements: list[str] = field(default_factory=list)
    needed: list[str] = field(default_factory=list)
    indexes: list[PipIndex] = field(default_factory=list)
    wheels: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    has_dependencies: bool = False

    def add_folder(self, folder: Path, extras: str = "", marker: str = "") -> None:
        """Include a local folder, as source if it is installed like that here.

        Parameters
        ----------
        folder
            The folder.
        extras
            Its extras, like ``[dev]``.
        marker
            The condition under which it is wanted, like ``; python_version < "3.13"``.
        """
        if package := editable_in(folder):
            # It is sent with the cells that import it, in its state at that time.
            if not self.has_dependencies:
                self.needed += dependencies(package, re.findall(r"[\w.-]+", extras))
            return
        self.add_wheel(tools.build(folder), extras, marker)

    def add_wheel(self, wheel: Path, extras: str = "", marker: str = "") -> None:
        """Include a local wheel."""
        name, version = wheel.name.split("-")[:2]
        self.requirements.append(f"{name}{extras}=={version}{marker}")
        self.wheels.append(wheel)

    def add_local(self, place: Path, extras: str = "", marker: str = "") -> None:
        """Include a wheel or folder of this computer."""
        add = self.add_wheel if place.suffix == ".whl" else self.add_folder
        add(place, extras, marker)


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
    found = EnvironmentFile(has_dependencies=True)
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
        extras, marker = _conditions(requirement)
        within = f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else ""
        if "git" in source:
            at = source.get("rev") or source.get("tag") or source.get("branch")
            address = f"git+{source['git']}{f'@{at}' if at else ''}{within}"
            found.requirements.append(f"{name}{extras} @ {address}{marker}")
        elif "path" in source:
            found.add_local((path.parent / source["path"]).resolve(), extras, marker)
        elif "url" in source:
            found.requirements.append(f"{name}{extras} @ {source['url']}{within}{marker}")
        elif not source.get("workspace"):
            found.requirements.append(requirement)
            if "index" in source:
                by_index.setdefault(source["index"], []).append(name)
    for index in uv.get("index", []):
        named = by_index.get(index.get("name", ""), [])
        if named or not index.get("explicit"):
            found.indexes.append(PipIndex(index["url"], named))
    return found


def _conditions(requirement: str) -> tuple[str, str]:
    """Return the extras of a requirement, and the condition under which it is wanted."""
    before, _, condition = requirement.partition(";")
    extras = re.search(r"\[[^\]]*\]", before)
    return extras[0] if extras else "", f" ; {condition.strip()}" if condition else ""


# requirements.txt

_WITH_VALUE = re.compile(r"(-\w)[\s=]*(.+)|(--[\w-]+)[\s=]+(.+)")
_OF_ENVIRONMENT = re.compile(r"\$\{([A-Z0-9_]+)\}")
_MARKER = re.compile(r"\s*;\s*|$")
_EXTRAS = re.compile(r"(.*?)(\[[^\]]*\])?")
_NAMED_FILE = re.compile(r"([\w.-]+)\s*(\[[^\]]*\])?\s*@\s*(file:.+)")
_REPOSITORY = re.compile(r"(?:git|hg|svn|bzr)\+")


def _requirements(path: Path) -> EnvironmentFile:
    found = EnvironmentFile()
    _add_file(found, path, ())
    return found


def _add_file(found: EnvironmentFile, path: Path, within: tuple[Path, ...]) -> None:
    """Add the lines of a requirements file, which may be named within others."""
    for line in _text(path).replace("\\\n", " ").splitlines():
        _add_line(found, line, path, within)


def _add_line(found: EnvironmentFile, line: str, path: Path, within: tuple[Path, ...] = ()) -> None:
    """Add a line of a requirements file."""
    text = re.sub(r"(^|\s)#.*$", "", line)
    text = " ".join(re.sub(r"\s--hash[=\s]\S+", "", text).split())
    # As pip reads it: a variable that is not set stays as it is.
    text = _OF_ENVIRONMENT.sub(lambda name: os.environ.get(name[1], name[0]), text)
    if not text.startswith("-"):
        text, *options = re.split(r"\s(?=--\w)", text)
        found.left_out += [f"{path.name}: `{each}` is not used on nodes." for each in options]
    if not text:
        return
    option = _WITH_VALUE.fullmatch(text)
    match (option[1] or option[3], option[2] or option[4]) if option else ("", text):
        case ("-r" | "--requirement", name):
            other = path.parent / name
            above = (*within, path.resolve())
            if other.resolve() in above:
                raise UsageError(f"{path} names {name}, which names it: leave one of them out.")
            _add_file(found, other, above)
        case ("-i" | "--index-url" | "--extra-index-url", url):
            if url.rstrip("/") != _PYPI:
                found.indexes.append(PipIndex(url))
        case ("-e" | "--editable", name) if ":" not in name and not name.startswith("/"):
            _add_requirement(found, f"./{name}", path)
        case ("-e" | "--editable" | "", source) if not source.startswith("-"):
            _add_requirement(found, source, path)
        case _:
            found.left_out.append(f"{path.name}: `{text}` is not used on nodes.")


def _add_requirement(found: EnvironmentFile, text: str, path: Path) -> None:
    """Add a requirement, which may be a file or folder of this computer, or an address."""
    at = _MARKER.search(text)
    assert at is not None
    source, condition = text[: at.start()], text[at.end() :]
    marker = f" ; {condition}" if condition else ""
    if named := _NAMED_FILE.fullmatch(source):
        found.add_local(_place(named[3], path), named[2] or "", marker)
    elif _REPOSITORY.match(source) or "://" in source.partition("@")[0].partition("[")[0]:
        if source.startswith("file:"):
            found.add_local(_place(source, path), marker=marker)
        else:
            found.requirements.append(f"{_with_name(source, path)}{marker}")
    elif source.startswith((".", "/", "~", "file:")) or ("/" in source and "@" not in source):
        parts = _EXTRAS.fullmatch(source)
        assert parts is not None
        found.add_local(_place(parts[1], path), parts[2] or "", marker)
    else:
        found.requirements.append(text)


def _place(name: str, path: Path) -> Path:
    """Return a place of this computer that a file names, as a path or an address."""
    name = name.partition("#")[0]
    if name.startswith("file:"):
        name = unquote(re.sub(r"^file:(//(localhost)?(?=/))?", "", name))
    return (path.parent / Path(name).expanduser()).resolve()


def _with_name(address: str, path: Path) -> str:
    """Return an address with the name of its package, which an environment of uv needs."""
    address, _, fragment = address.partition("#")
    parts = dict(each.partition("=")[::2] for each in fragment.split("&"))
    wheel = PurePosixPath(urlsplit(address).path)
    name = parts.pop("egg", "") or (wheel.name.split("-")[0] if wheel.suffix == ".whl" else "")
    if not name:
        shown = without_secrets(address)
        raise UsageError(f"{path}: {shown} needs the name of its package: write `NAME @ {shown}`.")
    rest = "&".join(f"{key}={value}" for key, value in parts.items() if key)
    return f"{name} @ {address}{f'#{rest}' if rest else ''}"


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
        return path.read_text(encoding="utf-8-sig")  # editors of Windows put a mark before it
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{path} cannot be read: {said}.") from None
