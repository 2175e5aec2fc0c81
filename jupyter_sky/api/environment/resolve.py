"""Resolves `Image.like` when a cluster starts: to requirements, wheels, and notes on the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from jupyter_sky.api.environment.files import read_file
from jupyter_sky.api.environment.imports import Package, packages
from jupyter_sky.api.environment.repack import wheel_of
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.formatting import format_list
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.packages import download_line, package_name, sources
from jupyter_sky.providers.spec import Image


def makes_environments(provider: Provider) -> bool:
    """Return whether nodes of a provider get their own environment."""
    usual = provider.name != "local" and getattr(provider, "python", None) is None
    return bool(getattr(provider, "makes_environments", usual))


def able_to_complete(
    provider: Provider, plugins: Iterable[Plugin], modules: Callable[[], Iterable[str]]
) -> Provider:
    """Return a provider that can `resolve` an image later, if its nodes need environments.

    Parameters
    ----------
    provider
        The provider; most know this before they start nodes.
    plugins
        As in `resolve`.
    modules
        Returns the modules; they are the present ones, however long the wait for nodes takes.
    """
    if not hasattr(provider, "complete"):
        return provider
    complete = partial(resolve, plugins=tuple(plugins), modules=frozenset(modules()))
    made: Provider = replace(cast(Any, provider), complete=complete)
    return made


def resolve(
    image: Image, plugins: Iterable[Plugin], modules: Iterable[str]
) -> tuple[Image, tuple[str, ...]]:
    """Return an image with `Image.like` resolved, and sentences about what is left out.

    Parameters
    ----------
    image
        What the user asked for.
    plugins
        The cluster's plugins, whose frameworks nodes also get in the notebook's version.
    modules
        Modules that the notebook has imported, or that a cell is about to import.

    Raises
    ------
    UsageError
        If a file cannot be read.
    """
    if image.like is None:
        return image, ()
    frameworks = {name for plugin in plugins for name in plugin.preload}
    if image.like == "imports":
        return _as_here(image, packages([*modules, *frameworks]), frameworks)
    found = read_file(Path(image.like).expanduser())
    image = replace(found.joined_to(image), pins=found.packages)
    # What an editable package leaves open of a framework, the notebook's version decides.
    named = {package_name(each) for each in found.requirements}
    there = [each for each in packages(frameworks) if package_name(each.name) not in named]
    image, said = _as_here(image, there, frameworks)
    return image, (*found.left_out, *said)


def _as_here(
    image: Image, found: Sequence[Package], frameworks: Set[str]
) -> tuple[Image, tuple[str, ...]]:
    """Return an image with packages in the versions that are installed here.

    Frameworks come from indexes that their plugins name.
    """
    at_hand = sources(image)
    sent = {package_name(each.name) for each in at_hand.wheels}
    pins, wheels, lacking, bound = [], [], [], []
    for each in found:
        if package_name(each.name) in sent:
            continue  # a wheel that the user has chosen
        if not each.is_from_index:
            if wheel := wheel_of(each.distribution):
                pins.append(f"{each.name}=={each.distribution.version}")
                wheels.append(str(wheel))
            else:
                bound.append(each)
        elif at_hand.no_index and each.name not in frameworks:
            lacking.append(each)
        else:
            pins.append(each.requirement)
    made = replace(image, pins=(*image.pins, *pins), wheels=(*image.wheels, *wheels))
    return made, (*_not_along(image, lacking), *_bound_to_here(bound))


def _not_along(image: Image, lacking: Sequence[Package]) -> list[str]:
    if not lacking:
        return []
    names = format_list([f"{each.name} {each.version}" for each in lacking])
    folder = next(each.url for each in sources(image).folders)
    line = download_line(folder, [each.requirement for each in lacking])
    return [
        f"nodes do without {names}, which the notebook has, and {folder} has not: "
        f"`{line}` gets {'it' if len(lacking) == 1 else 'them'}."
    ]


def _bound_to_here(found: Sequence[Package]) -> list[str]:
    if not found:
        return []
    names = format_list([f"{each.name} {each.version}" for each in found])
    return [
        f"nodes do without {names}, which no index has, and which cannot be taken along as it is "
        "here: `--wheels FOLDER` takes wheels for Linux along."
    ]
