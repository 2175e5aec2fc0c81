"""Does a cell fit the cluster that runs?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_sky.api import accelerators
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.options import CellOptions
from jupyter_sky.providers.ssh.connection.targets import parse


def check_fit(cluster: Cluster, options: CellOptions, hosts: tuple[str, ...]) -> None:
    """Refuse a cell that asks for another cluster than the one that runs."""
    has: Mapping[str, Any] = {
        "--nodes": len(cluster.state.nodes),
        "--procs-per-node": len(cluster.state.nodes[0].ranks),
        "--provider": cluster.provider.name,
        "--gpu": cluster.spec.accelerator and str(cluster.spec.accelerator).lower(),
        "--hosts": ",".join(node.name or "" for node in cluster.state.nodes),
    }
    asked = {
        "--nodes": options.nodes,
        "--procs-per-node": options.procs_per_node,
        "--provider": options.provider,
        "--gpu": options.gpu and str(accelerators.parse(options.gpu)).lower(),
        "--hosts": ",".join(map(str, parse(hosts))) or None,
    }
    for option, value in asked.items():
        if value is not None and value != has[option]:
            change = "`%sky down` first to replace it"
            if option == "--nodes":
                change = f"`%sky scale {value}` to change it"
            raise UsageError(
                f"cluster {cluster.name} is running with {option} {has[option]}, and the cell asks "
                f"for {value}: leave {option} out to use it, type {change}, or add "
                "`--cluster NAME` to start a second one."
            )
