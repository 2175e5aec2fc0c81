"""Which options of a notebook's cells a script with one pool has no place for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jupyter_sky.notebook.cluster_factory import ClusterFactory
from jupyter_sky.notebook.options.definitions import CLUSTER_OPTIONS, OPTION_NAMES, CellOptions

_OF_CALLS = (
    *("in_names", "retry", "background", "workdir"),
    *("profile", "show_memory", "pdb", "hang_after"),
)
"""Options of a run that calls of a pool have not."""

_OF_POOLS = (
    *("nodes", "gpu", "cpus", "memory", "hosts", "plugin", "volumes", "replace", "patience"),
    *("procs_per_node", "idle_timeout"),
    *("pip", "wheels", "env", "index", "include", "variable"),
)
"""Options of a cluster that every pool has, or its image."""

_ADDED = ("plugin", "pip", "wheels", "env", "index", "volumes", "variable")
"""What a later cell can add to a cluster; what else it names, the cluster has."""


def left_out(
    asked: Sequence[tuple[int, CellOptions]], factory: ClusterFactory
) -> Iterator[tuple[int, str]]:
    """Yield the number of a cell and an option of it that the script is without.

    Parameters
    ----------
    asked
        The options of all cells, with their numbers; the first ones start the cluster.
    factory
        Completes them by the settings.
    """
    for at, (number, options) in enumerate(asked):
        lacking = _not_started_with(asked[0][1], options) if at else _of_no_pool(options, factory)
        for name in (*_OF_CALLS, *lacking):
            if name in options.given:
                yield number, OPTION_NAMES[name]


_OPTIONS = tuple(argument.field for argument in CLUSTER_OPTIONS)


def _of_no_pool(starting: CellOptions, factory: ClusterFactory) -> Iterator[str]:
    """Yield fields of the options of a cluster that neither pool nor provider takes as they are."""
    provider = factory.provider(factory.complete(starting))
    for name in _OPTIONS:
        if name in _OF_POOLS or name not in starting.given:
            continue
        kept = getattr(
            provider, {"provider": "name", "aws_profile": "profile"}.get(name, name), None
        )
        if kept != starting.given[name]:
            yield name


def _not_started_with(starting: CellOptions, options: CellOptions) -> Iterator[str]:
    """Yield fields of the options of a cluster that a later cell has beyond those of the first."""
    for name in _ADDED:
        value, there = getattr(options, name), getattr(starting, name)
        is_there = value == there or (
            isinstance(value, tuple) and isinstance(there, tuple) and set(value) <= set(there)
        )
        if not is_there:
            yield name
