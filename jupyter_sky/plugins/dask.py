"""Dask: many small tasks on the nodes of a cluster, by Dask's own scheduler and workers."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._install import install, requirement
from jupyter_sky.plugins.dask_cluster.settings import WorkerOptions
from jupyter_sky.providers.spec import Image

if TYPE_CHECKING:
    from jupyter_sky.plugins.dask_cluster.deployment import Deployment


def dask(
    concurrency: int = 1, memory: float | None = None, *, version: str | None = None
) -> Plugin:
    """Run Dask's scheduler beside the head, and a worker beside each rank.

    ``pool.dask()`` and ``%sky dask`` return a `dask.distributed.Client`. Scheduler and workers
    start and end with the ranks, and write to the ranks' logs. Stop ends the tasks of a
    ``compute()`` that waits for them; those of a future go on, as with Dask elsewhere.

    Parameters
    ----------
    concurrency
        Number of tasks that a worker runs at once, in threads of one process.
    memory
        Gigabytes that a worker may use before it pauses; by default, its share of the machine.
    version
        The version of ``distributed`` on the nodes; by default, that of the notebook.

    Raises
    ------
    UsageError
        If an argument is invalid.
    """
    options = worker_options(concurrency, memory)
    return Plugin(
        "dask",
        transform=partial(install_dask, packages=(), version=version),
        around_client=partial(_around_client, options=options),
    )


def worker_options(concurrency: object, memory: object) -> WorkerOptions:
    """Return the options of workers, from the user's arguments.

    Raises
    ------
    UsageError
        If they are not numbers above 0.
    """
    try:
        threads = int(str(concurrency))
        gigabytes = None if memory is None else float(str(memory))
    except ValueError:
        threads, gigabytes = 0, None
    if threads < 1 or (gigabytes is not None and not gigabytes > 0):
        raise UsageError(
            f"concurrency={concurrency!r}, memory={memory!r} is not possible: give a number of "
            "tasks from 1, and of gigabytes above 0, as in sky.plugins.dask(concurrency=2)."
        )
    return WorkerOptions(threads, None if gigabytes is None else int(gigabytes * 1e9))


def install_dask(
    image: Image, cluster: Any, packages: tuple[str, ...], version: str | None
) -> Image:
    """Return an image with the notebook's version of Dask, since both must agree."""
    if version is None:
        try:
            version = importlib.metadata.version("distributed")
        except importlib.metadata.PackageNotFoundError:
            version = "latest"
    needed = [requirement("distributed", version), requirement("bokeh", "latest")]
    return install(image, [*packages, *needed])


@contextmanager
def _around_client(pool: Any, cluster: Any, options: WorkerOptions) -> Iterator[Deployment]:
    from jupyter_sky.plugins.dask_cluster.deployment import deployed

    with deployed(cluster, options) as deployment:
        yield deployment
