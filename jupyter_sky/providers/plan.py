"""Describes what will be installed on nodes: which packages, how large, and from where."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from jupyter_sky.formatting import format_bytes, format_count, format_list, without_secrets
from jupyter_sky.providers.packages import base_requirements, package_name, sources
from jupyter_sky.providers.spec import Image

_MOST = 8  # most packages to name

_looking = threading.Lock()


def plan(image: Image, requirements: Sequence[str], python: str, cuda: bool) -> str:
    """Describe an environment before it is made.

    Parameters
    ----------
    image
        The image.
    requirements
        All requirements: those of the image, and those of our own code on nodes.
    python
        The version of Python.
    cuda
        Whether it is for a node with an NVIDIA GPU.
    """
    base = base_requirements(image)
    known = {package_name(each) for each in (*base, *image.pip)}
    ours = [each for each in requirements if package_name(each) not in known]
    whose = f" of {image.packages_file}" if image.packages_file else " as the notebook has them"
    parts = [f"{_named(base)}{whose}"] if base else []
    parts += [f"{_named(image.pip)} as asked for"] if image.pip else []
    parts.append(f"{len(ours)} that jupyter_sky needs")
    text = f"to be installed once: Python {python}, {', '.join(parts)}"
    with _looking:  # called for several hosts at once, with the same answer
        size = _size_here(tuple(package_name(each) for each in requirements))
    if size:
        text += f"; {format_bytes(size)} on disk, as they are here{', with CUDA more' * cuda}"
    return f"{text}; {_from_where(image, cuda)}"


def _named(requirements: Sequence[str]) -> str:
    shown = [without_secrets(each).replace("==", " ") for each in requirements[:_MOST]]
    if more := len(requirements) - len(shown):
        shown.append(f"{more} more")
    return format_list(shown)


def _from_where(image: Image, cuda: bool) -> str:
    found = sources(image, cuda)
    places = [] if found.no_index else ["the usual package index"]
    for index in found.indexes:
        address = urlsplit(index.url)
        only = f" ({', '.join(index.packages)})" if index.packages else ""
        places.append(f"{address.hostname or ''}{address.path.rstrip('/')}{only}")
    if wheels := [*found.wheels, *map(Path, image.wheels)]:
        size = sum(each.stat().st_size for each in wheels)
        places.append(f"this computer ({format_count(len(wheels), 'wheel')}, {format_bytes(size)})")
    return f"from {format_list(places)}"


@functools.lru_cache(maxsize=8)
def _size_here(names: tuple[str, ...]) -> int:
    """Return the size in bytes of packages, with their dependencies, as installed here."""
    waiting, seen, size = list(names), set(), 0
    while waiting:
        name = package_name(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            distribution = importlib.metadata.distribution(name)
            size += sum(each.size or 0 for each in distribution.files or ())
            waiting += list(_needed(distribution.requires or ()))
    return size


def _needed(requirements: Iterable[str]) -> Iterable[str]:
    for text in requirements:
        with contextlib.suppress(InvalidRequirement):
            found = Requirement(text)
            if found.marker is None or found.marker.evaluate({"extra": ""}):
                yield found.name
