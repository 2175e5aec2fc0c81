"""Names that every notebook has without the person's doing, and every rank has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_sky.serialization.cell_sources import shell_of

_BY_PYTHON = frozenset(
    {"__builtins__", "__builtin__", "__name__", "__doc__", "__loader__", "__spec__", "get_ipython"}
)
_BY_IPYTHON = frozenset(
    {"In", "Out", "exit", "quit", "open", "display"}
    | {"_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh"}
)


def is_given(name: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether a name holds what IPython or Python has put there, not the person.

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
    # IPython tells in the same way which names `%who` does not show. A script has no shell.
    hidden: Mapping[str, Any] = getattr(shell_of(namespace), "user_ns_hidden", {})
    return name in hidden and hidden[name] is namespace[name]
