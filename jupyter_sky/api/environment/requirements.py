"""Requirements as files of pip have them, with the folders, addresses and files that they name."""

from __future__ import annotations

import codecs
import importlib.metadata
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import Distribution
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement

from jupyter_sky.api.environment import tools
from jupyter_sky.api.environment.imports import editable_distributions, is_editable
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import without_secrets
from jupyter_sky.providers.packages import package_name, sources_of, updated
from jupyter_sky.providers.spec import Image, PipIndex

PYPI = "https://pypi.org/simple"


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
    constraints
        What limits the versions of packages, whatever asks for them.
    wheels
        Wheels of local folders that it names.
    left_out
        Sentences about parts of the file that are not applied.
    """

    requirements: list[str] = field(default_factory=list)
    needed: list[str] = field(default_factory=list)
    indexes: list[PipIndex] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    wheels: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def packages(self) -> tuple[str, ...]:
        """All that nodes get."""
        return (*self.requirements, *self.needed)

    def add(self, requirement: str, path: Path) -> None:
        """Include a requirement of a file; it may name a file or folder of this computer.

        Raises
        ------
        UsageError
            If it is none.
        """
        if not (found := _OF_HERE.fullmatch(requirement)):
            _check(requirement, path)
            self.requirements.append(requirement)
            return
        place = _here(found["place"], path)
        if not place.exists() and (version := _version(found["name"])):
            # As `pip freeze` writes it for a package of conda: where that was built, on no machine.
            self.requirements.append(f"{found['name']}{found['extras'] or ''}=={version}")
            self.left_out.append(
                f"{path.name}: {found['name']} is taken from an index as {version}, like here: "
                f"there is no {place}."
            )
            return
        self.add_local(place, found["extras"] or "", found["marker"] or "")

    def add_local(self, place: Path, extras: str = "", marker: str = "") -> None:
        """Include a wheel or a folder of this computer.

        Parameters
        ----------
        place
            The wheel or the folder.
        extras
            Its extras, like ``"[dev]"``.
        marker
            Where it applies, like ``"; sys_platform == 'linux'"``.

        Raises
        ------
        UsageError
            If it is not there, or cannot be built.
        """
        for distribution in editable_distributions(place):
            # It is sent with the cells that import it, in its state at that time: what it needs
            # itself is not.
            self.needed += required_by(distribution, extras)
            return
        if place.suffix == ".whl" and not place.is_file():
            raise UsageError(f"there is no wheel {place} to take along: correct its name.")
        wheel = place if place.suffix == ".whl" else tools.build(place)
        name, version = wheel.name.split("-")[:2]
        self.requirements.append(f"{name}{extras}=={version}{marker}")
        self.wheels.append(wheel)

    def joined_to(self, image: Image) -> Image:
        """Return an image that also takes packages from where this file says.

        Its wheels and constraints replace others of the same packages.
        """
        there = sources_of(image)
        names = {package_name(each.name) for each in self.wheels}
        kept = [each for each in image.wheels if package_name(Path(each).name) not in names]
        return replace(
            image,
            constraints=updated(image.constraints, self.constraints),
            pip_indexes=(*there, *(each for each in self.indexes if each not in there)),
            wheels=(*kept, *map(str, self.wheels)),
        )

    def add_installed(self, name: str) -> bool:
        """Include what an own package needs, if it is installed from source (editable) here."""
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return False
        if is_own := is_editable(distribution):
            self.needed += required_by(distribution, "")
        return is_own


_OF_HERE = re.compile(
    r"(?P<name>[\w.-]+)\s*(?P<extras>\[[^]]*\])?\s*@\s*file:(?P<place>[^;]+?)\s*(?P<marker>;.*)?"
)
_LOCAL = re.compile(r"(?:file:)?(?P<place>[^;]+?)(?P<extras>\[[^][]*\])?\s*(?P<marker>;.*)?")
_EXTRA = re.compile(r"\s*(?:\band\b)?\s*\(?\bextra\s*==\s*['\"]([\w.-]+)['\"]\)?")


def _check(requirement: str, path: Path) -> None:
    try:
        Requirement(requirement)
    except InvalidRequirement:
        raise UsageError(
            f"{path}: `{without_secrets(requirement)}` is no requirement that pip takes, like "
            "`numpy>=2`: correct the line, or take it out."
        ) from None


def required_by(distribution: Distribution, extras: str) -> list[str]:
    """Return what an installed package needs, with extras like ``"[dev,gpu]"``."""
    lines = distribution.requires or []
    own = package_name(distribution.metadata["Name"])
    wanted: set[str] = set()
    further = {package_name(each) for each in extras.strip("[]").split(",") if each.strip()}
    while further:  # an extra can name others of the same package
        wanted |= further
        of_own = (each for each in _applying(lines, wanted) if package_name(each) == own)
        further = {package_name(each) for line in of_own for each in _extras_of(line)} - wanted
    return [each for each in _applying(lines, wanted) if package_name(each) != own]


def _applying(lines: Sequence[str], extras: Collection[str]) -> Iterator[str]:
    """Yield requirements, without the extra that they are for."""
    for line in lines:
        requirement, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        if extra is None or package_name(extra[1]) in extras:
            rest = _EXTRA.sub("", marker).strip()
            yield f"{requirement.strip()} ; {rest}" if rest else requirement.strip()


def _extras_of(requirement: str) -> set[str]:
    try:
        return Requirement(requirement).extras
    except InvalidRequirement:
        return set()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _here(place: str, path: Path) -> Path:
    """Return a place that a file names, from the folder of the file."""
    if place.startswith("//"):
        place = unquote("/" + place.removeprefix("//").removeprefix("localhost").lstrip("/"))
    return (path.parent / Path(place).expanduser()).resolve()


# Lines of files

_OPTION = re.compile(r"(--[\w-]+(?=[\s=])|-\w)[\s=]*(.+)")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_ADDRESS = re.compile(r"(?:(?:git|hg|svn|bzr)\+\S+|https?://\S+)(?:\s*;.*)?")
_OPTION_BEHIND = re.compile(r"\s(--[a-z][\w-]*(?:[=\s].*)?)$")


def add_requirements(found: EnvironmentFile, path: Path, above: tuple[Path, ...] = ()) -> None:
    """Add the lines of a requirements file.

    Raises
    ------
    UsageError
        If it cannot be read, or names itself.
    """
    if path.resolve() in above:
        raise UsageError(f"{path} names itself with `-r`: take the line out.")
    for line in read_text(path).replace("\\\n", " ").splitlines():
        add_line(found, line, path, (*above, path.resolve()))


def add_line(found: EnvironmentFile, line: str, path: Path, above: tuple[Path, ...] = ()) -> None:
    """Add a line of a requirements file; ``above`` are those that name it, and it."""
    text = re.sub(r"(^|\s)#.*$", "", line)
    text = " ".join(re.sub(r"\s--hash[=\s]\S+", "", text).split())
    # As pip does: a node has not these variables.
    text = _VARIABLE.sub(lambda name: os.environ.get(name[1], name[0]), text)
    if not text:
        return
    if not text.startswith("-") and (behind := _OPTION_BEHIND.search(text)):
        found.left_out.append(f"{path.name}: `{without_secrets(behind[1])}` is not used on nodes.")
        text = text[: behind.start()].rstrip()
    option = _OPTION.fullmatch(text)
    match option.groups() if option else ("", text):
        case ("-r" | "--requirement", name):
            add_requirements(found, path.parent / name, above)
        case ("-c" | "--constraint", name) if (path.parent / name).is_file():
            limits = EnvironmentFile()
            add_requirements(limits, path.parent / name, above)
            found.constraints += [*limits.requirements, *limits.constraints]
            found.indexes += limits.indexes
            found.left_out += limits.left_out
        case ("-i" | "--index-url" | "--extra-index-url", value):
            url, _, behind_it = value.partition(" ")
            if url.rstrip("/") != PYPI:
                found.indexes.append(PipIndex(url))
            add_line(found, behind_it, path, above)
        case ("-e" | "--editable", address) if _ADDRESS.fullmatch(address):
            found.add(_named(address, path), path)
        case ("-e" | "--editable", place):
            _add_place(found, place, path)
        case ("", place) if place.startswith((".", "/", "~/", "file:")) or _is_place(place, path):
            _add_place(found, place, path)
        case ("", address) if _ADDRESS.fullmatch(address):
            found.add(_named(address, path), path)
        case ("", requirement) if not requirement.startswith("-"):
            found.add(requirement, path)
        case _:
            shown = without_secrets(text)
            found.left_out.append(f"{path.name}: `{shown}` is not used on nodes.")


def _is_place(text: str, path: Path) -> bool:
    """Return whether pip takes a word for a folder or a wheel of this computer."""
    if not (words := _LOCAL.fullmatch(text)):
        return False
    place = _here(words["place"], path)
    return place.is_file() if place.suffix == ".whl" else "/" in words["place"] and place.is_dir()


def _add_place(found: EnvironmentFile, text: str, path: Path) -> None:
    if words := _LOCAL.fullmatch(text):
        found.add_local(_here(words["place"], path), words["extras"] or "", words["marker"] or "")


def _named(address: str, path: Path) -> str:
    """Return an address as a requirement with a name, which an environment needs.

    Raises
    ------
    UsageError
        If the address does not say it.
    """
    address, _, marker = address.partition(";")
    url, _, fragment = address.strip().partition("#")
    parts = dict(each.partition("=")[::2] for each in fragment.split("&") if each)
    wheel = re.search(r"/([\w.]+)-[^/]+\.whl$", url)
    if not (name := parts.pop("egg", "") or (wheel[1] if wheel else "")):
        shown = without_secrets(address.strip())
        raise UsageError(f"{path}: {shown} needs the name of its package: write `NAME @ {shown}`.")
    kept = "&".join(f"{key}={value}" for key, value in parts.items())
    return f"{name} @ {url}{f'#{kept}' if kept else ''}{f' ;{marker}' if marker else ''}"


# Reading

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_text(path: Path) -> str:
    """Return the text of a file, in the encoding that its first bytes mark, or UTF-8.

    Raises
    ------
    UsageError
        If it cannot be read.
    """
    try:
        data = path.read_bytes()
        encoding = next((each for mark, each in _MARKS.items() if data.startswith(mark)), "utf-8")
        return "\n".join(data.decode(encoding).splitlines())
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{path} cannot be read: {said}.") from None
