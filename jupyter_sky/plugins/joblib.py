"""joblib: installed on the nodes, with as many workers as a rank has processors for itself."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.plugins._environment import environment
from jupyter_sky.plugins._install import install, requirement
from jupyter_sky.providers.spec import Image


def joblib(version: str = "latest") -> Plugin:
    """Install joblib on the nodes; ``n_jobs=-1`` means the processors of one rank.

    Parameters
    ----------
    version
        ``"latest"``, a version like ``"1.4.0"``, or a constraint like ``">=1.4"``.

    Raises
    ------
    UsageError
        When it is none of these.
    """
    return Plugin(
        "joblib",
        transform=partial(_install_joblib, package=requirement("joblib", version)),
        around_process=own_processors,
    )


def own_processors(info: InstanceInfo) -> AbstractContextManager[None]:
    """Share the node's processors among its ranks, unless the user has set the number."""
    node = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    own = max(1, (node or 1) // info.local_world_size)
    return environment({"LOKY_MAX_CPU_COUNT": os.environ.get("LOKY_MAX_CPU_COUNT", str(own))})


def _install_joblib(image: Image, cluster: Any, package: str) -> Image:
    return install(image, [package])
