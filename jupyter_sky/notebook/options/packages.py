"""The value of ``--pip``: a package, by its name."""

from __future__ import annotations

import re

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import without_secrets

_ADDRESS = re.compile(r"(?:(?:git|hg|svn|bzr)\+|https?://|file://)")
_PATH = re.compile(r"[.~/]|[^\s@]*/|[^\s@]+\.(?:whl|tar\.gz)$")


def parse(text: str) -> str:
    """Return a package as nodes are asked for it: with its name, which an environment needs.

    Raises
    ------
    ValueError
        If it is none.
    UsageError
        If it is an address or a path, which pip takes without a name.
    """
    if _ADDRESS.match(text):
        shown = without_secrets(text)
        raise UsageError(f"{shown} needs the name of its package: write `'NAME @ {shown}'`.")
    if _PATH.match(text):
        raise UsageError(
            f"{text} is a path: `pip wheel --no-deps -w wheels {text}` makes a wheel of it, and "
            "`--wheels wheels --pip NAME` installs that; modules beside the notebook need neither."
        )
    from packaging.requirements import InvalidRequirement, Requirement  # 15 ms

    try:
        Requirement(text)
    except InvalidRequirement:
        raise ValueError(text) from None
    return text
