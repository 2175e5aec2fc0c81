"""Attributes of modules and their classes that the notebook has set, so that ranks have them too.

``config.LR = 0.1``, ``Trainer.log_every = 10`` and ``transformers.Foo.forward = forward`` change no
name of the notebook, and a module travels as its import. What is set is sent like the value of a
name, under the attribute's full name (``config.LR``), and set again on the ranks.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FunctionType, ModuleType
from typing import Any

from jupyter_sky.serialization.user_modules import user_source_file

# In the notebook

_noted: dict[str, None] = {}  # in the order in which they were set


def note(targets: Iterable[str], namespace: Mapping[str, Any]) -> frozenset[str]:
    """Note what a cell has assigned, if it is an attribute of a module or of a class in one.

    Parameters
    ----------
    targets
        What it has assigned, as written, up to the first part that is no attribute: ``cfg.LR``.
    namespace
        The notebook's.

    Returns
    -------
    frozenset of str
        The full names of such attributes.
    """
    found = frozenset(filter(None, (_full_name(each, namespace) for each in targets)))
    _noted.update(dict.fromkeys(found))
    return found


def values(modules: Collection[str] | None = None) -> dict[str, Any]:
    """Return the values of what was noted, by full name.

    Parameters
    ----------
    modules
        Only what is in packages to which one of these belongs.
    """
    packages = {module.partition(".")[0] for module in modules or ()}
    found = {}
    for name in _noted:
        if modules is None or name.partition(".")[0] in packages:
            with suppress(ImportError, AttributeError, KeyError):  # it is there no longer
                holder, _, attribute = name.rpartition(".")
                found[name] = vars(pkgutil.resolve_name(holder))[attribute]
    return found


def _full_name(target: str, namespace: Mapping[str, Any]) -> str | None:
    root, *path = target.split(".")
    holder, value = None, namespace.get(root)
    while path and isinstance(value, (ModuleType, type)):
        name = path.pop(0)
        holder, value = value, vars(value).get(name)
    if holder is None or not _counts(holder, value, is_all=not path):
        return None
    where = holder.__name__
    if isinstance(holder, type):
        where = f"{holder.__module__}.{holder.__qualname__}"
    return None if "<" in where else f"{where}.{name}"


def _counts(holder: ModuleType | type, value: Any, *, is_all: bool) -> bool:
    """Return whether what was set is the user's: a part of their module, or put into another."""
    name = holder.__module__ if isinstance(holder, type) else holder.__name__
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    if user_source_file(module):
        return True
    is_patch = is_all and isinstance(value, FunctionType) and value.__module__ == "__main__"
    return is_patch and name.partition(".")[0] not in sys.stdlib_module_names


# On a rank


def get(name: str) -> Any:
    """Return the value of an attribute by its full name, as `note` returns it; or ``None``."""
    with suppress(ImportError, AttributeError):
        return pkgutil.resolve_name(name)
    return None


def put(name: str, value: Any) -> None:
    """Set an attribute by its full name.

    Parameters
    ----------
    name
        As `note` returns it.
    value
        Its value.
    """
    holder, _, attribute = name.rpartition(".")
    setattr(pkgutil.resolve_name(holder), attribute, value)


@contextmanager
def kept(names: Iterable[str]) -> Iterator[None]:
    """Have attributes keep their values while modules are loaded again, as in the notebook."""
    values = {}
    for name in names:
        with suppress(ImportError, AttributeError, KeyError):
            holder, _, attribute = name.rpartition(".")
            values[name] = vars(pkgutil.resolve_name(holder))[attribute]
            # A function that is there would be given the code of the file's.
            delattr(pkgutil.resolve_name(holder), attribute)
    try:
        yield
    finally:
        for name, value in values.items():
            with suppress(ImportError, AttributeError):  # the edited file has no such class
                put(name, value)
