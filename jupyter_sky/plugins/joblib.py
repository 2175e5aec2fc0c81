"""joblib: the notebook's ``Parallel(n_jobs=-1)`` runs on the whole cluster, by Dask."""

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
    """Run the notebook's joblib tasks on the cluster, by Dask.

    In the notebook, ``n_jobs=-1`` means all workers, inside the pool or while the cluster of
    ``%%sky`` cells is connected; of several clusters, all workers of the one connected last. In a
    call or cell on a rank, it means the processors of that rank. Stop ends all calls: those that
    run are interrupted at their next line of Python, and where that is long in coming, as in a
    computation of a library, ``restart()`` of Dask's client ends them.

    Parameters
    ----------
    version
        ``"latest"``, a version like ``"1.4.0"``, or a constraint like ``">=1.4"``.
    concurrency, memory
        As for `jupyter_sky.plugins.dask`. If several plugins use Dask, the first one decides.

    Raises
    ------
    UsageError
        If an argument is invalid.
    """
    return Plugin(
        "joblib",
        transform=partial(install_dask, packages=(requirement("joblib", version),), version=None),
        around_process=own_processors,
        around_client=partial(on_cluster, options=worker_options(concurrency, memory)),
    )


def own_processors(info: InstanceInfo) -> AbstractContextManager[None]:
    """Divide the node's processors among its ranks, unless the user has set the number."""
    node = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    own = max(1, (node or 1) // info.local_world_size)
    return environment({"LOKY_MAX_CPU_COUNT": os.environ.get("LOKY_MAX_CPU_COUNT", str(own))})


@contextmanager
def on_cluster(pool: Any, cluster: Any, options: WorkerOptions) -> Iterator[Deployment]:
    """Let joblib use Dask on a cluster, in all threads, unless the user chooses a backend."""
    from jupyter_sky.plugins.dask_cluster.deployment import deployed

    with deployed(cluster, options) as deployment:
        # It imports joblib; where that is not installed, `deployed` has said what to do.
        from jupyter_sky.plugins.dask_cluster.joblib_backend import used_everywhere

        with used_everywhere(lambda: deployment.client, deployment.progress):
            yield deployment
