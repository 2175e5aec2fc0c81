"""``%sky gc``: removes leftovers of dead clusters, and unused environments and wheels."""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from jupyter_sky.api.environment.wheel_folders import remove_unused
from jupyter_sky.cluster.inventory import cloud_resources, orphans, owed_ends, registry, stops
from jupyter_sky.cluster.inventory.machines import UnreadableRow
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count, join_reasons
from jupyter_sky.notebook.attached import write_back_left
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.commands.life.stops import disks_cost
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.setup import prune as ssh

_LONGEST_START = 24 * 3600.0  # seconds from making its wheels until a cluster is recorded


def gc(context: CommandContext, options: Namespace) -> None:
    """End what could not be reached before; remove leftovers, unused wheels and environments."""
    _settle_owed_ends()
    remove_orphans(options.name, context.session.factory.provider)
    _remove_wheels(options.unused_for)
    _prune_environments(context.hosts(options.hosts), options.unused_for)


def _settle_owed_ends() -> None:
    """End machines that could not be told that their cluster was ended, and print which."""
    for owed, done in owed_ends.settle_now():
        if done:
            print(f"ended what was left of {owed.name} on {owed.hosts}")
        else:
            print(f"{owed}; this is tried again while a notebook uses clusters")


def remove_orphans(identity: str | None, provider_of: Callable[[CellOptions], Provider]) -> None:
    """End and remove what dead clusters have left behind, and print what it was.

    Parameters
    ----------
    identity
        The id of a cluster in another registry to end as well.
    provider_of
        Returns the provider that options mean.

    Raises
    ------
    UsageError
        If no cluster has this id; then nothing is removed.
    """
    dead = orphans.find()
    rented, trouble = cloud_resources.find(everywhere=True)
    known = {*(each.id for each in dead), *(each.resources.id for each in rented)}
    if identity and not trouble and identity not in known:
        raise UsageError(
            f"no machines are rented for a cluster with the id {identity}: `%sky down NAME` ends "
            "a cluster by its name."
        )
    left: list[orphans.Orphan | cloud_resources.RentedCluster] = [*dead]
    left += [each for each in rented if each.is_orphaned or each.resources.id == identity]
    for each in left:
        text = str(each)
        try:
            _write_back(each, provider_of)
            each.remove()
            print(f"removed {text}")
        except SkyError as error:
            trouble.append(f"{error}")
    if not left and not trouble:
        print("nothing was left behind")
    now = time.time()
    for row in registry.rows():
        if row.spec.get("stopped"):
            print(
                f"kept: {row.name}, which is stopped: {disks_cost(stops.disk_cost(row, now))}; "
                f"`%sky down {row.name}` ends it"
            )
    for sentence in join_reasons([*trouble, *cloud_resources.upkeep()]):
        print(sentence)
    for each in rented:
        if each not in left and not each.is_readable:
            print(
                f"left alone: {each}, whose entry in the registry cannot be read: another version "
                f"of jupyter_sky may use it; `%sky gc {each.resources.id}` ends it"
            )
        elif each not in left and not each.resources.is_ours:
            print(
                f"left alone: {each}, started by {each.resources.started_by} with another "
                "registry; "
                f"`%sky gc {each.resources.id}` ends it"
            )


def _write_back(
    left: orphans.Orphan | cloud_resources.RentedCluster,
    provider_of: Callable[[CellOptions], Provider],
) -> None:
    """Write back what nodes that are left of a cluster have in volumes.

    Raises
    ------
    NotWrittenBack
        If rented machines have files that exist nowhere else.
    """
    if isinstance(left, orphans.Orphan):
        row = registry.with_id(left.id)
    else:  # strays are none of its nodes
        row = None if left.strays else registry.with_id(left.resources.id)
    if row is None:
        return
    with contextlib.suppress(UnreadableRow):  # nothing here knows how its machines are reached
        write_back_left(row, provider_of, "keep")


def _remove_wheels(unused_for: float | None) -> None:
    """Remove wheels made here that were not used for that many seconds, and print how many.

    A cluster that is up keeps what has been used since its start: nodes that join it are sent that.
    """
    clusters = registry.read()
    began = [row.created - _LONGEST_START for row in clusters if isinstance(row, RegistryRow)]
    if len(began) == len(clusters):  # it is known of all when they began
        count = remove_unused(min([time.time() - (unused_for or ssh.UNUSED_FOR), *began]))
        if count:
            print(f"removed {format_count(count, 'unused wheel')} that were made here")


def _prune_environments(targets: Sequence[Target], unused_for: float | None) -> None:
    """Remove environments that were not used for that many seconds, and print which."""

    def prune(target: Target) -> str:
        try:
            pruned = ssh.prune(pool.get(target), unused_for or ssh.UNUSED_FOR)
        except SkyError as error:
            return f"cannot be cleaned up: {error}"
        finally:
            pool.get(target).close_if_unused()
        return f"removed {pruned}" if pruned.kinds else "every environment there is in use"

    with ThreadPoolExecutor(max(1, len(targets))) as threads:
        for target, result in zip(targets, threads.map(prune, targets), strict=True):
            print(f"{target}: {result}")
