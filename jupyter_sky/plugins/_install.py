"""Installation of frameworks: requirements for the image, and an error if one is missing."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.spec import Image, PipIndex


def requirement(package: str, version: str) -> str:
    """Return a requirement in pip's syntax.

    Parameters
    ----------
    package
        The package, with its extras.
    version
        ``"latest"``, a version like ``"2.3.0"``, or a constraint like ``">=2.3"``.
    """
    if version == "latest":
        return package
    constraint = r"(===?|[<>~!]=|[<>])\s*"
    number = r"v?\d[\w.*+!-]*"
    if not isinstance(version, str) or not re.fullmatch(
        rf"(?:{constraint})?{number}(?:\s*,\s*{constraint}{number})*", version
    ):
        raise UsageError(
            f"{version!r} is not a version of {package}: "
            'type "latest", a version like "2.3.0", or a constraint like ">=2.3".'
        )
    return f"{package}{version}" if version[0] in "=<>~!" else f"{package}=={version}"


def install(image: Image, requirements: Sequence[str], index: PipIndex | None = None) -> Image:
    """Return an image with further requirements, and the index to install them from.

    A requirement that the image already has is not added again, and one without a version is not
    added if the user has named that package.
    """
    present = {_package(each) for each in image.pip} | set(image.pip)
    pip = [each for each in requirements if each not in present]
    indexes = [] if index is None or index in image.pip_indexes else [index]
    return replace(image, pip=(*image.pip, *pip), pip_indexes=(*image.pip_indexes, *indexes))


def _package(requirement: str) -> str:
    """Return the name at the beginning of a requirement, with its extras."""
    name = re.match(r"[\w.-]+(\[[\w.,\s-]*\])?", requirement.strip())
    return re.sub(r"[_.-]+", "-", name[0]).lower() if name else requirement


@contextmanager
def needs(module: str, here: str) -> Iterator[None]:
    """Import a framework inside the block; if it is missing, say how to install it.

    Parameters
    ----------
    module
        The module, and its name for pip.
    here
        The arguments of ``pip install`` on a node that no provider prepares, like this machine.

    Raises
    ------
    SkyError
        If the framework is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise _is_missing(module, here) from None


def check_installed(module: str) -> None:
    """Say how to install a framework if it is missing, without importing it.

    Raises
    ------
    SkyError
        If it is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise _is_missing(module, module)


def _is_missing(module: str, here: str) -> SkyError:
    return SkyError(
        f"{module} is not installed on this node: pip install {here} here, "
        f'or add `--pip {module}` to the cell, or pip=["{module}"] to the image of a pool.'
    )
