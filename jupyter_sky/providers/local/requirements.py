"""How the notebook's own environment differs from an image."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
from collections.abc import Iterator

from jupyter_sky.formatting import without_secrets
from jupyter_sky.providers.spec import Image


def differences(image: Image) -> tuple[str, ...]:
    """Return how this environment differs from an image, a sentence each."""
    return (*_python(image.python), *_packages(image))


def _python(wanted: str | None) -> Iterator[str]:
    here = platform.python_version()
    if wanted and not f"{here}.".startswith(f"{wanted}."):
        yield (
            f"local nodes run this notebook's Python {here}, where Python {wanted} was asked for."
        )


def _packages(image: Image) -> Iterator[str]:
    if not image.pip:
        return
    from packaging.requirements import InvalidRequirement, Requirement  # 15 ms

    lacking, other = [], []
    for text in image.pip:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:  # a path or an address, without a package name to look for
            continue
        if wanted.marker and not wanted.marker.evaluate():
            continue
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            lacking.append(text)
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            other.append((text, f"{wanted.name} {version}"))
    if not lacking and not other:
        return
    has = [f"lacks {', '.join(lacking)}"] if lacking else []
    has += [f"has {here} where {text} was asked for" for text, here in other]
    fix = shlex.join([*lacking, *(text for text, _ in other)])
    yield without_secrets(
        f"local nodes use this notebook's environment, which {' and '.join(has)}: "
        f"`%pip install {fix}` changes that, and `%sky pip install {fix}` only for one cluster."
    )
