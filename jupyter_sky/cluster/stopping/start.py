"""Starting a stopped cluster again."""

from __future__ import annotations

from dataclasses import replace

from jupyter_sky.cluster.cluster import USUAL, Cluster
from jupyter_sky.cluster.control import lifecycle
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.cluster.runtime_env import RuntimeEnv, Timeouts
from jupyter_sky.providers.base import Progress, Provider
from jupyter_sky.providers.spec import ClusterSpec


def start_stopped(
    row: RegistryRow,
    spec: ClusterSpec,
    provider: Provider,
    runtime_env: RuntimeEnv,
    progress: Progress = lambda text: None,
    timeouts: Timeouts = USUAL,
    money: float | None = None,
) -> Cluster:
    """Start a stopped cluster again, and return it when its ranks are ready.

    Parameters
    ----------
    row
        Its row in the registry.
    spec, provider, runtime_env
        As for starting a new cluster; the number of nodes is as before.
    money
        Dollars that it may cost from now on; by default, the rest of its limit, if any.

    Raises
    ------
    SkyError
        If it does not start; it then stays stopped.
    """
    config = lifecycle.config_of(row, provider, runtime_env, timeouts)
    cluster = Cluster(replace(config, spec=replace(spec, nodes=config.spec.nodes)))
    cluster.power.start(row, progress, money)
    return cluster
