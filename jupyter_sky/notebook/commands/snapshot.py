"""``%sky snapshot``: keep a prepared node as an image, so that the next ones start fast."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.output.progress import ProgressLine
from jupyter_sky.providers.aws.clients import Clients, clients_at
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.ec2.instance import Instance


def make(shell: InteractiveShell, cluster: Cluster) -> str:
    """Make a snapshot of a cluster's head, and return what there is to say of it."""
    row = registry.find(cluster.name)
    if row is None or row.provider != "aws":
        raise UsageError(
            f"{cluster.name} is on {cluster.provider.name}, and only instances of AWS have "
            "snapshots: others keep what is installed on them."
        )
    head = Instance.of(row.machines[0])
    with ProgressLine(shell, cluster.name) as progress:
        progress.update("flushing the head's disk")
        head.flush()
        user = head.host.partition("@")[0]
        made = snapshots.make(clients_at(head.place), head.id, head.content, user, progress.update)
        progress.update(f"made the snapshot {made.name} in {progress.seconds:.0f} s")
    return (
        f"{made}. Clusters in {head.place} that have the same installed boot from it from now on. "
        "It holds all that is on the head's disk, your files too, and only your AWS account can "
        f"use it. `%sky snapshot --remove {made.name}` removes it"
    )


def remove(there: Clients, name: str) -> str:
    """Remove a snapshot, and return what there is to say of it."""
    return f"removed the snapshot {snapshots.remove(there, name)}"
