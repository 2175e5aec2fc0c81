"""joblib: ``Parallel(n_jobs=-1)`` of the notebook runs on the whole cluster, by Dask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.plugins._environment import environment
from jupyter_sky.plugins._install import requirement
from jupyter_sky.plugins.dask import install_dask, worker_options
from jupyter_sky.plugins.dask_cluster.settings import WorkerOptions

if TYPE_CHECKING:
    from jupyter_sky.plugins.dask_cluster.deployment import Deployment


def joblib(version: str = "latest", *, concurrency: int = 1, memory: float | None = None) -> Plugin:
    """Run joblib's tasks of the notebook on the cluster, by Dask.

    In the notebook ``n_jobs=-1`` means all workers, inside of the pool or as long as the cluster of
    ``%%sky`` cells is connected. In a call or cell on a rank it means the processors of that rank.

    Parameters
    ----------
    version
        ``"latest"``, a version like ``"1.4.0"``, or a constraint like ``">=1.4"``.
    concurrency, memory
        As in `jupyter_sky.plugins.dask`. The first of several plugins that use Dask decides.

    Raises
    ------
    UsageError
        When an argument is not possible.
    """
    return Plugin(
        "joblib",
        transform=partial(install_dask, packages=(requirement("joblib", version),), version=None),
        around_process=own_processors,
        around_client=partial(on_cluster, options=worker_options(concurrency, memory)),
    )


def own_processors(info: InstanceInfo) -> AbstractContextManager[None]:
    """Share the node's processors among its ranks, unless the user has set the number."""
    node = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    own = max(1, (node or 1) // info.local_world_size)
    return environment({"LOKY_MAX_CPU_COUNT": os.environ.get("LOKY_MAX_CPU_COUNT", str(own))})


@contextmanager
def on_cluster(pool: Any, cluster: Any, options: WorkerOptions) -> Iterator[Deployment]:
    """Let joblib use Dask on a cluster, in all threads, unless the user says which backend."""
    from jupyter_sky.plugins.dask_cluster.deployment import deployed
    from jupyter_sky.plugins.dask_cluster.joblib_backend import used_everywhere

    with (
        deployed(cluster, options) as deployment,
        used_everywhere(deployment.client, deployment.progress),
    ):
        yield deployment
