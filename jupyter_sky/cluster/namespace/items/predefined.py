"""Which names of a notebook are the user's, and which those of Python and IPython."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_sky.serialization.cell_sources import shell_of
from jupyter_sky.serialization.user_modules import OF_MAIN

_BY_PYTHON = OF_MAIN | {"get_ipython"}
_BY_IPYTHON = frozenset(
    {"In", "Out", "exit", "quit", "open", "display"}
    | {"_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh"}
)


def is_predefined(name: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether a name has the value that IPython or Python has given it, not the user.

    Parameters
    ----------
    name
        A name of the notebook; it may have been assigned, as ``open`` in ``from gzip import open``.
    namespace
        The notebook's.
    """
    if name in _BY_PYTHON:
        return True
    if name not in _BY_IPYTHON or name not in namespace:
        return False
    # IPython decides in the same way which names `%who` does not show. A script has no shell.
    hidden: Mapping[str, Any] = getattr(shell_of(namespace), "user_ns_hidden", {})
    return name in hidden and hidden[name] is namespace[name]


def of_user(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names that the user has given values, with these."""
    return {name: each for name, each in namespace.items() if not is_predefined(name, namespace)}
