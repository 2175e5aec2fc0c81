"""What ranks need from the notebook for calls, and for items that calls are fed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from jupyter_sky.analysis.cell_names import CellNames, analyse
from jupyter_sky.analysis.namespace_diff import LastObjects
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.namespace.items.item import class_key
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
    with _guard:
        needed = _needed.setdefault(cluster, _Needed())
    with needed.lock:
        # What other threads bind meanwhile is found when it is needed next.
        now = dict(namespace)
        if names_again := needed.objects.changed(now):
            classes = {class_key(now[name]) for name in names_again}
            values = {**now, **module_attributes.values()}
            cluster.sync.assigned(names_again.union(filter(None, classes)), values)
            needed.objects.note(names_again, now)
        update = cluster.sync.update(names, namespace, ranks, cell=cell, limit=None)
        needed.objects.note(update.needed, now)
    return update


class _Needed:
    """The objects that calls on a cluster have needed: ranks go on with them as they changed them.

    To bind a name to another object is to assign it, also where that equals what ranks were sent.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # also for a call within a pickle
        self.objects = LastObjects()


_needed: WeakKeyDictionary[Cluster, _Needed] = WeakKeyDictionary()
_guard = threading.Lock()


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
