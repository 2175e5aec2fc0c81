"""``%sky snapshot``: saves the prepared head as an image from which nodes start faster."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Sequence

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.providers.aws import local_store
from jupyter_sky.providers.aws.clients import clients_at
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.ec2.instance import Instance


def snapshot(context: CommandContext, options: Namespace) -> None:
    """Make a snapshot of the head, or remove one, and print what was done."""
    if options.remove:
        here = context.session.factory.aws().location()
        place = _place_of(options.remove, [here, *local_store.locations()])
        print(f"removed the snapshot {snapshots.remove(clients_at(place), options.remove)}")
    else:
        print(_make(context.shell, context.cluster(options.cluster)))


def _place_of(name: str, places: Sequence[str]) -> str:
    """Return the place that has a snapshot; the first one if none is known to have it."""
    for place in dict.fromkeys(places):
        with contextlib.suppress(SkyError):  # others may have it where one cannot be asked
            if any(each.name == name for each in snapshots.every(clients_at(place))):
                return place
    return places[0]


def _make(shell: InteractiveShell, cluster: Cluster) -> str:
    """Make a snapshot of a cluster's head, and return sentences about it."""
    row = registry.find(cluster.name)
    if row is None or row.provider != "aws":
        raise UsageError(
            f"{cluster.name} has {cluster.provider.name} nodes, and only AWS instances have "
            f"snapshots: other nodes keep what is installed on them."
        )
    head = Instance.from_row(row.machines[0])
    with ProgressLine(shell, cluster.name) as progress:
        progress.update("flushing the head's disk")
        head.flush()
        user = head.host.partition("@")[0]
        clients = clients_at(head.location)
        made = snapshots.make(clients, head.id, head.content, user, progress.update)
        progress.update(f"made the snapshot {made.name} in {progress.seconds:.0f} s")
    return (
        f"{made}. New clusters in {head.location} with the same packages boot from it. It contains "
        f"everything on the head's disk, including your files, and only your AWS account can use "
        f"it. `%sky snapshot --remove {made.name}` removes it"
    )
