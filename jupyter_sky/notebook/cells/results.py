"""What a run is asked to bring back, and how it is bound in the notebook."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import owed_runs
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import UsageError

RankValues = Mapping[int, Mapping[str, Any]]
"""The values of a run, by rank and name."""


def check_bound_once(requests: Mapping[str, Iterable[str]]) -> None:
    """Refuse requests of which two would be bound to the same name.

    Parameters
    ----------
    requests
        What is asked for, by what is typed before it, like ``--out``.

    Raises
    ------
    UsageError
        When there are two for one name.
    """
    found: dict[str, str] = {}
    for command, names in requests.items():
        for asked in names:
            name, typed = _bound_name(asked), f"`{command} {asked}`"
            if name in found:
                raise UsageError(
                    f"{found[name]} and {typed} would both be bound to {name}: leave one of them "
                    "out."
                )
            found[name] = typed


def requested_names(
    ranks: Sequence[int], out: Sequence[str], gather: Sequence[str]
) -> dict[int, list[str]]:
    """Return the names to ask each rank for, as a `Task` takes them.

    Parameters
    ----------
    ranks
        The ranks of the run.
    out
        Names of which the first rank's value is wanted, as with ``--out``.
    gather
        Names of which every rank's value is wanted, as with ``--gather``.
    """
    if not out and not gather:
        return {}
    requested = {rank: list(gather) for rank in ranks} if gather else {}
    requested[ranks[0]] = list(dict.fromkeys([*out, *gather]))
    return requested


def select(
    values: RankValues, ranks: Sequence[int], names: Iterable[str], gathered: Collection[str]
) -> dict[str, Any]:
    """Return what each name is bound to: the first rank's value, or a list of all in rank order.

    A state dictionary that is asked for as ``model:state`` is bound to ``model_state``.

    Parameters
    ----------
    values
        What came back.
    ranks
        The ranks of the run.
    names
        The names to bind.
    gathered
        Those of them that are bound to a list.
    """
    return {
        _bound_name(name): [values[rank][name] for rank in ranks]
        if name in gathered
        else values[ranks[0]][name]
        for name in names
    }


def select_requested(values: RankValues, task: Task) -> dict[str, Any]:
    """Do the same for a task that `requested_names` was made for, by another kernel perhaps."""
    first, *_ = task.ranks
    return select(values, task.ranks, task.values.get(first, ()), task.gathered)


def bind(
    shell: InteractiveShell,
    cluster: Cluster,
    run: RunHandle,
    values: Mapping[str, Any],
    gathered: Collection[str],
) -> dict[str, Any]:
    """Bind values that came back from a run, and return them.

    What they are copies of in the notebook is changed as it was changed on the rank, and bound in
    their place. The ranks keep what they have under these names; it is not sent back to them. A
    state dictionary is no value of a rank's name: it is sent if a cell uses it.

    Parameters
    ----------
    shell
        The notebook's.
    cluster, run
        The run and its cluster.
    values
        What came back, by name.
    gathered
        Names whose value is a list with one of each rank.
    """
    if not values:
        return {}  # as of most cells
    asked = {name for each in run.task.values.values() for name in each}
    kept = [name for name in values if name in asked]
    copies = {name: values[name] for name in kept if name not in gathered}
    bound = {**values, **cluster.sync.merge(copies, shell.user_ns, run.task.ranks[0])}
    shell.push(dict(bound))
    has = {rank: done.bound.keys() for rank, done in run.done.items()}
    cluster.sync.returned(kept, shell.user_ns, run.task.update, has)
    owed_runs.settle(cluster.id, run.id)
    if "matplotlib.figure" in sys.modules and hasattr(shell, "kernel"):
        # Or a kernel would show figures as text until it makes one itself, which loads this.
        importlib.import_module("matplotlib_inline.backend_inline")
    return bound


def _bound_name(asked: str) -> str:
    return asked.replace(":", "_")
