"""Keras: installed on the nodes, with its backend chosen before it is imported."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._environment import environment
from jupyter_sky.plugins._install import install, requirement
from jupyter_sky.providers.spec import Image


def keras(backend: Literal["jax", "torch", "tensorflow"], version: str = "latest") -> Plugin:
    """Install Keras on the nodes and choose its backend.

    Parameters
    ----------
    backend
        ``"jax"``, ``"torch"`` or ``"tensorflow"``. That framework has its own plugin, which
        goes before this one in the list.
    version
        ``"latest"``, a version like ``"3.5.0"``, or a constraint like ``">=3.5"``.

    Raises
    ------
    UsageError
        When an argument is none of these.
    """
    if backend not in ("jax", "torch", "tensorflow"):
        raise UsageError(f'backend={backend!r} is unknown: type "jax", "torch" or "tensorflow".')
    return Plugin(
        "keras",
        transform=partial(_install_keras, backend=backend, package=requirement("keras", version)),
        around_process=partial(_backend, backend=backend),
    )


def _install_keras(image: Image, cluster: Any, backend: str, package: str) -> Image:
    image = install(image, [package])
    return replace(image, env={**image.env, "KERAS_BACKEND": backend})


def _backend(info: InstanceInfo, backend: str) -> AbstractContextManager[None]:
    return environment({"KERAS_BACKEND": backend})
