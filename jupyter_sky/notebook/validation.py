"""What the options of a cell ask for, compared with the cluster that is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jupyter_sky.api import accelerators
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_dollars
from jupyter_sky.notebook.options.definitions import CLUSTER_OPTIONS, CellOptions
from jupyter_sky.notebook.options.option_type import as_word
from jupyter_sky.notebook.project.image import file_of, has_given_environment
from jupyter_sky.notebook.project.plugins import costs_of
from jupyter_sky.providers.packages import package_name, updated
from jupyter_sky.providers.ssh.connection.targets import parse

_REPLACE = "`%sky down` first to replace it"

_SHAPE = ("nodes", "gpu", "procs_per_node", "provider", "hosts")
"""What a cluster is made of."""

_FIXED = frozenset(
    {
        "cpus",
        "memory",
        "region",
        "aws_profile",
        "zone",
        "instance_type",
        "image_id",
        "partition",
        "account",
        "qos",
        "time",
        "constraint",
        "gres",
        "exclusive",
        "sbatch",
        "login",
        "modules",
        "conda",
        "container",
        "spot",
        "spot_or_on_demand",
        "ssm",
        "idle_timeout",
        "autostop",
        "replace",
        "patience",
        "max_cost",
        "include",
    }
)
"""Options that a cluster has from its start to its end."""

_FIXED_OPTIONS = [each for each in CLUSTER_OPTIONS if each.field in _FIXED]

_ALTERNATIVES = frozenset({"provider", "region"})
"""Options that can name several, of which a cluster has one."""


def describes_another(options: CellOptions, started: CellOptions) -> bool:
    """Return whether options, with the settings of now, describe another cluster than the started.

    What can be added to a cluster that is up makes it no other one.
    """
    given = {each: value for each in (*_SHAPE, *_FIXED) if (value := getattr(options, each))}
    return any(not _suits(each, getattr(started, each), value) for each, value in given.items())


def start_again_with(options: CellOptions, started: CellOptions) -> CellOptions:
    """Return the options to start a lost cluster again with, for a cell with ``options``.

    It gets what the cell says of what nodes have from their beginning; what can be added to them
    later is not among it.
    """
    given = {
        each: value
        for each in (*_FIXED, "max_price", "env")
        if (value := getattr(options, each)) not in (None, False, ())
    }
    variable = tuple((dict(started.variable) | dict(options.variable)).items())
    return replace(started, **given, variable=variable)


def check_fit(
    cluster: Cluster, options: CellOptions, hosts: tuple[str, ...], started: CellOptions
) -> None:
    """Refuse options that describe another cluster than the one that is running.

    None is passed over: what a cell asks for is so already, or it is told what to type.

    Parameters
    ----------
    cluster
        The cluster that is running.
    options
        The options of the cell.
    hosts
        The hosts of the cell, without names of groups.
    started
        The options with which the cluster was started.

    Raises
    ------
    UsageError
        With the commands to choose from.
    """
    asked = {
        "--nodes": options.nodes,
        "--procs-per-node": options.procs_per_node,
        "--provider": options.provider,
        "--gpu": options.gpu and str(accelerators.parse(options.gpu)),
        "--hosts": ",".join(map(str, parse(hosts))) or None if hosts else None,
    }
    for option, value in asked.items():
        has = _has(cluster, option)
        is_same = str(value).lower() == str(has).lower() if option == "--gpu" else value == has
        if value is not None and not is_same:
            change = f"`%sky scale {value}` to change it" if option == "--nodes" else _REPLACE
            raise _other_cluster(_running(cluster), option, has, value, change)
    _check_plugins(cluster, options, started)
    _check_fixed(_running(cluster), options, started)
    limit = options.max_price
    if limit is not None and (price := cluster.price) is not None and price > limit:
        costs = f"{format_dollars(price)} an hour"
        raise _other_cluster(_running(cluster), "--max-price", costs, format_dollars(limit))


def check_fit_stopped(name: str, options: CellOptions, started: CellOptions) -> None:
    """Refuse options that describe another cluster than one that is stopped, before it starts.

    Once it is up, `check_fit` also looks at what only the cluster itself tells.

    Parameters
    ----------
    name
        The name of the cluster.
    options
        The options of the cell.
    started
        The options with which the cluster was started.

    Raises
    ------
    UsageError
        With the commands to choose from.
    """
    there = f"cluster {name} was started"
    asked: dict[str, tuple[object, object]] = {
        "--provider": (started.provider, options.provider),
        "--gpu": (_gpu(started.gpu), _gpu(options.gpu)),
        "--hosts": (",".join(started.hosts), ",".join(options.hosts) or None),
    }
    if started.procs_per_node:  # otherwise as many as its nodes have GPUs
        asked["--procs-per-node"] = started.procs_per_node, options.procs_per_node
    for option, (has, value) in asked.items():
        if value is not None and value != has:
            raise _other_cluster(there, option, has, value)
    _check_fixed(there, options, started)


def missing_packages(cluster: Cluster, options: CellOptions) -> tuple[str, ...]:
    """Return those of the packages of a cell that the cluster does not have."""
    found = file_of(options)
    named = updated(found.packages, options.pip)
    if not named:  # as in most cells, for which the registry need not be read
        return ()
    image = cluster.spec.image
    present = {*image.pins, *cluster.packages.added}
    if not has_given_environment(cluster):  # one of its own was made with them
        present.update(image.pip)
    if not set(found.constraints) <= set(image.constraints):
        return named
    rebuilt = cluster.packages.changed(found.wheels)
    return tuple(each for each in named if each not in present or package_name(each) in rebuilt)


def further_plugins(
    cluster: Cluster, options: CellOptions, started: CellOptions
) -> tuple[str, ...]:
    """Return those of the plugins of a cell that the cluster does not have."""
    known = {*cluster.runtime_env.plugins, *(started.plugin or ())}
    return tuple(word for word in options.plugin or () if word not in known)


def first_that_fits(
    choices: Sequence[CellOptions], check: Callable[[CellOptions], None]
) -> CellOptions:
    """Return the first of several options that a check lets pass; raise for the first if none."""
    refused = []
    for each in choices:
        try:
            check(each)
            return each
        except UsageError as error:
            refused.append(error)
    raise refused[0]


def _running(cluster: Cluster) -> str:
    return f"cluster {cluster.name} is running"


def _gpu(word: str | None) -> str | None:
    return str(accelerators.parse(word)).lower() if word else None


def _check_fixed(there: str, options: CellOptions, started: CellOptions) -> None:
    """Refuse what a cluster and its ranks have from their beginning, if it is asked for otherwise.

    Parameters
    ----------
    there
        What the sentence says first.
    options, started
        The options of the cell, and those with which the cluster was started.
    """
    for each in _FIXED_OPTIONS:
        value, before = getattr(options, each.field), getattr(started, each.field)
        if value not in (None, False, ()) and not _suits(each.field, before, value):
            write = each.type.write if each.type else as_word
            raise _other_cluster(there, each.name, before, value, write=write)
    if options.env in ("imports", "none") and options.env != (started.env or "imports"):
        raise _other_cluster(there, "--env", started.env or "imports", options.env)
    known = dict(started.variable)
    if lacking := [name for name, _ in options.variable if name not in known]:
        raise _other_cluster(there, "--variable", "", ",".join(lacking))


def _suits(field: str, has: Any, asked: Any) -> bool:
    """Return whether what a cluster has of an option is what is asked for, or one of several."""
    return has in asked.split(",") if field in _ALTERNATIVES else bool(has == asked)


def _has(cluster: Cluster, option: str) -> Any:
    """Return what a cluster has of an option."""
    nodes = cluster.state.nodes
    match option:
        case "--nodes":
            return len(nodes)
        case "--procs-per-node":
            return len(nodes[0].ranks)
        case "--provider":
            return cluster.provider.name
        case "--gpu":
            return cluster.spec.accelerator and str(cluster.spec.accelerator)
        case _:  # --hosts, which nodes of other providers are not
            is_ssh = cluster.provider.name == "ssh"
            return ",".join(node.name or "" for node in nodes) if is_ssh else None


def _check_plugins(cluster: Cluster, options: CellOptions, started: CellOptions) -> None:
    """Refuse plugins that cannot be added while the ranks keep their variables."""
    has, other = cluster.runtime_env.plugins, further_plugins(cluster, options, started)
    takes_away = options.plugin == () and has
    if (other or takes_away) and (why := costs_of(other, has)):
        costs = (
            f"`%sky down` first to replace it ({why}, so this costs their variables: `%sky pull` "
            "brings back what you need)"
        )
        asked = ",".join(other) or "none"
        raise _other_cluster(_running(cluster), "--plugin", ",".join(has), asked, costs)


def _other_cluster(
    there: str,
    option: str,
    has: object,
    asked: object,
    change: str = _REPLACE,
    write: Callable[[Any], str] = as_word,
) -> UsageError:
    """Return the sentence that a cluster is there, and is not what a cell asks for."""
    switch = asked is True
    runs = f"with {option} {write(has)}" if has not in (None, False, "", ()) else "without"
    if switch or runs == "without":
        runs = f"without {option}"
    wants = "it" if switch else write(asked)
    return UsageError(
        f"{there} {runs}, and the cell asks for {wants}: leave {option} "
        f"out to use it, type {change}, or add `--cluster NAME` to start a second one."
    )
