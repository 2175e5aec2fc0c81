"""The sources of an image's packages, in uv's format: indexes, and wheels of this machine."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shlex
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from packaging.requirements import Requirement

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import HIDDEN, without_secrets
from jupyter_sky.providers.spec import Image, PipIndex
from jupyter_sky.serialization.imported_versions import normal_name
from jupyter_sky.transport.protocol.agent_requests import SENT_WHEELS

_PYTORCH_HOST = "download.pytorch.org"
"""The host of indexes that have PyTorch, and single old versions of packages that it needs."""


@dataclass(frozen=True)
class Sources:
    """Sources of packages.

    Attributes
    ----------
    settings
        The part of a ``pyproject.toml`` that limits versions and assigns packages to indexes.
    wheels
        Wheels to send along.
    no_index
        Whether to use only these, and no package index.
    folders
        The folders of these wheels.
    indexes
        The indexes to use.
    """

    settings: str
    wheels: tuple[Path, ...] = ()
    no_index: bool = False
    folders: tuple[PipIndex, ...] = ()
    indexes: tuple[PipIndex, ...] = ()


def sources(image: Image, cuda: bool = False) -> Sources:
    """Return the sources of an image's packages.

    Parameters
    ----------
    image
        The image.
    cuda
        Whether it is for a node with an NVIDIA GPU.

    Raises
    ------
    UsageError
        If one of its folders has no wheels.
    """
    every = sources_of(image)
    folders = [index for index in every if not urlsplit(index.url).scheme]
    wheels = tuple(wheel for index in folders for wheel in _wheels(index))
    sent = {package_name(wheel.name) for wheel in wheels}
    indexes = [_for_node(index, cuda) for index in every if index not in folders]
    wanted = [index for index in indexes if not index.packages or set(index.packages) - sent]
    no_index = bool(folders) and not wanted
    settings = _settings(wanted, sent, image.constraints)
    return Sources(settings, wheels, no_index, tuple(folders), tuple(wanted))


def base_requirements(image: Image) -> list[str]:
    """Return the requirements of `Image.pins` that are not overridden by `Image.pip`."""
    texts = [line for each in image.pip for line in _lines(each)]
    chosen = {package_name(each) for each in texts if re.search(r"[=<>~!@]", each.split(";")[0])}
    return [each for each in image.pins if package_name(each) not in chosen]


def _lines(requirement: str) -> list[str]:
    """Return a requirement, or those in a requirements file, as far as it can be read."""
    if not requirement.startswith("-r"):
        return [requirement]
    try:
        return Path(requirement[2:].strip()).expanduser().read_text().splitlines()
    except OSError:
        return []


def with_cuda(image: Image) -> Image:
    """Return an image that uses the indexes for NVIDIA GPUs."""
    indexes = [_for_node(each, True) for each in sources_of(image)]
    return replace(image, pip_indexes=indexes)


def sources_of(image: Image) -> list[PipIndex]:
    """Return the indexes of an image, and its folders of wheels."""
    return [each if isinstance(each, PipIndex) else PipIndex(each) for each in image.pip_indexes]


def _for_node(index: PipIndex, cuda: bool) -> PipIndex:
    return PipIndex(index.cuda_url, index.packages) if cuda and index.cuda_url else index


def check_secrets(requirements: Sequence[str]) -> None:
    """Refuse requirements whose password was left out of the registry.

    Raises
    ------
    UsageError
        If one of them has such a password.
    """
    for each in requirements:
        if HIDDEN in each:
            raise UsageError(
                f"the registry does not keep the secret behind {HIDDEN} in {each}: end the cluster "
                f"with `%sky down` and start it again with that secret."
            )


def project(requirements: Sequence[str], settings: str) -> str:
    """Return a ``pyproject.toml`` with these requirements."""
    lines = ["[project]", 'name = "node"', 'version = "0"', "dependencies = ["]
    lines += [f"    {json.dumps(each)}," for each in requirements]
    return "\n".join([*lines, "]", settings])


def as_sent(requirements: Sequence[str], wheels: Sequence[str]) -> list[str]:
    """Return requirements, with sent wheels as files, so that no index is asked for these names."""
    files = {package_name(Path(each).name): Path(each).name for each in wheels}

    def placed(text: str) -> str:
        if (name := package_name(text)) not in files:
            return text
        extras, marker = extras_and_marker(Requirement(text))
        return f"{name}{extras} @ file://{SENT_WHEELS}/{quote(files[name])}{marker}"

    return list(map(placed, dict.fromkeys(requirements)))


def extras_and_marker(requirement: Requirement) -> tuple[str, str]:
    """Return what is behind the name and at the end of a requirement, as pip writes them."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return extras, f" ; {requirement.marker}" if requirement.marker else ""


def package_name(requirement: str) -> str:
    """Return the package name of a requirement or of a wheel's file name."""
    name = re.match(r"[A-Za-z0-9._]+(?:-(?!\d)[A-Za-z0-9._]+)*", requirement.strip())
    return normal_name(name[0]) if name else requirement


def updated(requirements: Sequence[str], newer: Sequence[str]) -> tuple[str, ...]:
    """Return requirements of which newer ones replace those of the same packages."""
    names = {package_name(each) for each in newer}
    kept = [each for each in requirements if package_name(each) not in names]
    return tuple(dict.fromkeys([*kept, *newer]))


def download_line(
    folder: str,
    requirements: Sequence[str],
    indexes: Sequence[PipIndex] = (),
    machine: str | None = None,
) -> str:
    """Return the line for a cell that downloads wheels for nodes.

    Parameters
    ----------
    folder
        The folder to put them in.
    requirements
        What to download, with what that needs.
    indexes
        Where to look, besides the usual index.
    machine
        The kind of machine of the nodes, like ``"x86_64"``, if it is known.
    """
    words = ["-d", folder]
    here = platform.machine() if sys.platform == "linux" else None
    if here is None or machine not in (None, here):
        kind = machine or "x86_64"
        words.append("--only-binary=:all:")
        # pip takes a newer name of a platform for that alone: most wheels have an older one.
        words += [f"--platform=manylinux_2_28_{kind}", f"--platform=manylinux2014_{kind}"]
    for each in indexes:
        words += ["--extra-index-url", each.url]
    return f"%pip download {shlex.join([*words, *requirements])}"


def wheel_content(wheel: Path) -> list[str]:
    """Return the identity of a wheel's content: its table of files, with their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        table = [(each.filename, each.CRC, each.file_size) for each in archive.infolist()]
    return [wheel.name, hashlib.sha256(json.dumps(table).encode()).hexdigest()]


def _settings(indexes: Sequence[PipIndex], sent: set[str], constraints: Sequence[str]) -> str:
    limits = f"constraint-dependencies = {json.dumps(list(constraints))}"
    lines, places = [limits] if constraints else [], {}
    for_any = {urlsplit(index.url).hostname for index in indexes if not index.packages}
    if for_any == {_PYTORCH_HOST}:
        # Else uv takes no other version of what it finds there. Beside other indexes, a stranger
        # could offer versions of what only they should have.
        lines.append('index-strategy = "unsafe-first-match"')
    if lines:
        lines.insert(0, "[tool.uv]")
    for number, index in enumerate(indexes):
        explicit = "true" if index.packages else "false"
        lines += ["[[tool.uv.index]]", f'name = "index-{number}"', f"url = {json.dumps(index.url)}"]
        lines.append(f"explicit = {explicit}")
        names = map(package_name, index.packages)
        places.update({name: number for name in names if name not in sent})
    lines.append("[tool.uv.sources]")
    lines += [f'{name} = {{ index = "index-{number}" }}' for name, number in places.items()]
    return "\n".join(lines) + "\n"


def _wheels(index: PipIndex) -> list[Path]:
    folder = Path(index.url).expanduser()
    found = sorted(folder.glob("*.whl"))
    if not found:
        raise UsageError(
            f"pip_indexes has {without_secrets(index.url)!r}, which is neither an address nor a "
            "folder with wheels: type one that begins with https://, or `pip download` wheels into "
            "the folder first."
        )
    return found
