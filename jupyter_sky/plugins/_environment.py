"""Environment variables that are set while a block runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jupyter_sky.serialization.process.rank_variables import rank_variables


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block, and restore the previous values after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def environment_of_rank(variables: Mapping[str, str]) -> Iterator[None]:
    """As `environment`, for variables that scripts and programs of shell lines do not get."""
    with rank_variables(variables), environment(variables):
        yield
