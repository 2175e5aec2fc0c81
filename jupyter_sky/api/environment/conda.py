"""Environments of conda, as far as pip can go."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from jupyter_sky.api.environment import tools
from jupyter_sky.api.environment.requirements import EnvironmentFile, add_line, read_text
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_list
from jupyter_sky.imports import import_whole

_PIP_NAMES = {"pytorch": "torch", "pytorch-lightning": "pytorch-lightning", "py-xgboost": "xgboost"}
_NOT_NEEDED = frozenset({"python", "pip", "setuptools", "wheel", "ipykernel", "jupyter"})


def read_conda(path: Path, kinds: str) -> EnvironmentFile:
    """Read an ``environment.yml``.

    Parameters
    ----------
    path
        The file.
    kinds
        The kinds of files that could be named instead.

    Raises
    ------
    UsageError
        If it cannot be read.
    """
    import_whole("yaml")
    import yaml

    try:
        said = yaml.safe_load(read_text(path))
    except yaml.YAMLError:
        raise UsageError(f"{path} is no YAML: correct it, or name {kinds}.") from None
    if not isinstance(said, dict) or not isinstance(said.get("dependencies"), list):
        raise UsageError(f"{path} has no list of `dependencies`, as an environment of conda has.")
    found, others = EnvironmentFile(), []
    for each in said["dependencies"]:
        if isinstance(each, dict):
            lines = each.get("pip") or ()
            if isinstance(lines, str):
                raise UsageError(f"{path}: `pip:` should have a list below it, like `- einops`.")
            for line in lines:
                add_line(found, str(line), path)
            continue
        name, version = _parts(str(each))
        if version is None:
            found.left_out.append(
                f"{path.name}: nodes get any version of {name}: what conda takes from `{each}`, "
                "pip does not know."
            )
            version = ""
        if name == "python":
            here = ".".join(map(str, sys.version_info[:2]))
            if version and not _fits(version, here):
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


def _parts(text: str) -> tuple[str, str | None]:
    """Return the name of a conda package, and its version in pip's syntax; ``None`` if none is."""
    match = re.fullmatch(r"(?:\S+::)?([\w.-]+)\s*(.*)", text.strip())
    if match is None:
        return text, None
    # Blanks may stand around operators and commas; behind another one is a build.
    version = re.sub(r"\s*([<>=!~]=?|,)\s*", r"\1", match[2])
    version = version.partition(" ")[0]
    if version[:1].isdigit():
        version = f"=={version}"
    # Conda's `=1.2` means any 1.2, and a build may follow a further `=`.
    if exact := re.fullmatch(r"(==?)([^=\s,|]+)(=[^=,|]*)?", version):
        number = exact[2].removesuffix(".*").removesuffix("*").rstrip(".")
        is_any = number != exact[2] or (exact[1] == "=" and number.count(".") < 2)
        version = f"=={number}.*" if is_any else f"=={number}"
    try:
        SpecifierSet(version)
    except InvalidSpecifier:
        return match[1].lower(), None
    return match[1].lower(), version


def _fits(versions: str, here: str) -> bool:
    """Return whether the notebook's Python is one of these; ``==3.11`` means any 3.11 here."""
    return versions == f"=={here}" or platform.python_version() in SpecifierSet(versions)


def _as_pip(name: str, version: str) -> str | None:
    """Return pip's requirement for a conda package that is known to be the same."""
    if name in _NOT_NEEDED:
        return None
    if name in _PIP_NAMES:
        return _PIP_NAMES[name] + version
    return name + version if tools.is_python_package(name) else None
