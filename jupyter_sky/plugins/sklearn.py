"""scikit-learn: the notebook's searches and ensembles run on the whole cluster, by Dask."""

from __future__ import annotations

from functools import partial

from jupyter_sky.api.plugin import Plugin
from jupyter_sky.plugins._install import requirement
from jupyter_sky.plugins.dask import install_dask, worker_options
from jupyter_sky.plugins.joblib import on_cluster, own_processors


def sklearn(
    version: str = "latest", *, concurrency: int = 1, memory: float | None = None
) -> Plugin:
    """Run scikit-learn's parallel work on the cluster, like `jupyter_sky.plugins.joblib`.

    In the notebook, ``GridSearchCV(..., n_jobs=-1)`` uses all workers of the cluster.

    Parameters
    ----------
    version
        ``"latest"``, a version like ``"1.5.0"``, or a constraint like ``">=1.5"``.
    concurrency, memory
        As for `jupyter_sky.plugins.dask`. If several plugins use Dask, the first one decides.

    Raises
    ------
    UsageError
        If an argument is invalid.
    """
    packages = (requirement("scikit-learn", version), "joblib")
    return Plugin(
        "sklearn",
        transform=partial(install_dask, packages=packages, version=None),
        around_process=own_processors,
        around_client=partial(on_cluster, options=worker_options(concurrency, memory)),
        preload=("sklearn",),
    )
