"""What ranks need from the notebook for calls, and for items that calls are fed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames, analyse
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.cell_sources import shell_of
from jupyter_sky.serialization.process import module_attributes


def find_needs(
    cluster: Cluster, names: Iterable[str], modules: Iterable[str], ranks: Sequence[int]
) -> NamespaceUpdate:
    """Return what ranks lack of what calls or items need.

    Parameters
    ----------
    cluster
        The cluster.
    names, modules
        The names of the notebook, and the modules, that they need; see `Pickled`.
    ranks
        The ranks that may get them.

    Raises
    ------
    UsageError
        If a name cannot be pickled.
    """
    namespace = pickling.main_namespace()
    for source in _running(namespace):
        # Those that earlier cells assign are known since these have ended.
        module_attributes.note(_targets(source), namespace)
    cell = CellNames(modules=frozenset(modules))
    return cluster.sync.update(names, namespace, ranks, cell=cell, limit=None)


def _running(namespace: Mapping[str, Any]) -> Iterator[str]:
    """Yield the source of the script that makes the call, and of the running cell."""
    if file := namespace.get("__file__"):
        yield _read(file)
    history = getattr(shell_of(namespace), "history_manager", None)
    yield from getattr(history, "input_hist_raw", ())[-1:]


@functools.cache
def _read(file: str) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return Path(file).read_text()
    return ""


def _targets(source: str) -> frozenset[str]:
    with suppress(SyntaxError):
        return analyse(source).targets
    return frozenset()
