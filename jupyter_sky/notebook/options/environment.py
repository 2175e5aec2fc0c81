"""The value of ``--env``, which says what packages nodes have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.options.option_type import CompletionContext

WORDS = ("imports", "none")
"""What it can be besides a file."""


def parse(text: str) -> str:
    """Return the name of a file or a choice without one.

    Raises
    ------
    UsageError
        When it is an environment variable, which ``--env`` of `docker run` and of ``%sky launch``
        takes; its value, which may be secret, is not said.
    """
    name, equals, _ = text.partition("=")
    if name.isidentifier() and (equals or name in os.environ) and not Path(text).exists():
        variable = f"{name}=VALUE" if equals else name
        raise UsageError(
            f"--env says which packages nodes have: `--variable {variable}` gives ranks an "
            "environment variable."
        )
    return text


def completions(context: CompletionContext) -> Iterator[str]:
    """Yield what can be typed here."""
    yield from WORDS
    for pattern in ("uv.lock", "pyproject.toml", "requirements*.txt", "environment*.y*ml"):
        yield from sorted(str(file) for file in Path().glob(pattern))
