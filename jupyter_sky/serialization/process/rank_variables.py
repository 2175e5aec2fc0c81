"""Environment variables that a rank has for itself, and not for the programs beside it.

They tell torch or JAX its place in the group, and that it should outlive a lost peer. A script has
ranks of its own: with these, it would join those of the cluster, or go on where it should end. So
would a program that a line like ``!cmd`` starts. What the user's code starts by itself, as with
`subprocess`, inherits all that the process has, as everywhere in Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_own: dict[str, tuple[str, str | None]] = {}
"""Their values, and those from before, by name."""


@contextmanager
def rank_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Leave variables that are set inside the block out of what `for_others` returns there.

    Parameters
    ----------
    variables
        Their values, by name; it is called before they are set.
    """
    former = dict(_own)
    _own.update({name: (value, os.environ.get(name)) for name, value in variables.items()})
    try:
        yield
    finally:
        _own.clear()
        _own.update(former)


def for_others() -> dict[str, str]:
    """Return the environment of this process as it is without them."""
    found = dict(os.environ)
    for name, (value, before) in dict(_own).items():  # a run may end meanwhile
        if found.get(name) != value:
            continue  # the user's code has changed it
        if before is None:
            del found[name]
        else:
            found[name] = before
    return found
