"""RAPIDS cuML: scikit-learn's estimators on the GPU, with unchanged code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._install import install, needs
from jupyter_sky.providers.spec import Image, PipIndex

_WHEELS = "https://pypi.nvidia.com"


def cuml(cuda: str = "cu12") -> Plugin:
    """Install cuML on the nodes, and let ``import sklearn`` on the ranks use it.

    It has not been run on a GPU.

    Parameters
    ----------
    cuda
        Which wheels to take: ``"cu12"`` for CUDA 12.

    Raises
    ------
    UsageError
        If ``cuda`` is invalid.
    """
    if not isinstance(cuda, str) or not re.fullmatch(r"cu\d{2}", cuda):
        raise UsageError(f'cuda={cuda!r} names no wheels of cuML: type one like cuda="cu12".')
    return Plugin(
        "cuml",
        transform=partial(_install_cuml, package=f"cuml-{cuda}"),
        around_process=_accelerated,
    )


def _install_cuml(image: Image, cluster: Any, package: str) -> Image:
    return install(image, [package], PipIndex(_WHEELS, packages=(package,)))


@contextmanager
def _accelerated(info: InstanceInfo) -> Iterator[None]:
    with needs("cuml", "cuml-cu12"):
        import cuml.accel

    cuml.accel.install()
    yield
