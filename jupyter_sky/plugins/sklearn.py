"""scikit-learn: installed on the nodes, with inner parallelism as the joblib plugin sets it."""

from __future__ import annotations

from functools import partial
from typing import Any

from jupyter_sky.api.plugin import Plugin
from jupyter_sky.plugins._install import install, requirement
from jupyter_sky.plugins.joblib import own_processors
from jupyter_sky.providers.spec import Image


def sklearn(version: str = "latest") -> Plugin:
    """Install scikit-learn on the nodes; ``n_jobs=-1`` means the processors of one rank.

    Parameters
    ----------
    version
        ``"latest"``, a version like ``"1.5.0"``, or a constraint like ``">=1.5"``.

    Raises
    ------
    UsageError
        When it is none of these.
    """
    return Plugin(
        "sklearn",
        transform=partial(_install_sklearn, package=requirement("scikit-learn", version)),
        around_process=own_processors,
        preload=("sklearn",),
    )


def _install_sklearn(image: Image, cluster: Any, package: str) -> Image:
    return install(image, [package, "joblib"])
