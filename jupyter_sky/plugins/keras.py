"""Keras: installed on the nodes, with its backend chosen before it is imported."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._environment import environment
from jupyter_sky.plugins._install import check_installed, install, needs, requirement
from jupyter_sky.providers.spec import Image


def keras(backend: Literal["jax", "torch", "tensorflow"], version: str = "latest") -> Plugin:
    """Install Keras on the nodes and choose its backend.

    Where the jax plugin goes before it in the list, ``fit`` is data parallel over all ranks: each
    gives its own share of the batches, as from `jupyter_sky.shard`, and all have the same weights.
    ``keras.distribution.set_distribution(None)`` goes back to one rank, as `predict` needs it.
    With the other backends each rank trains a model of its own.

    Parameters
    ----------
    backend
        ``"jax"``, ``"torch"`` or ``"tensorflow"``. The first two have plugins of their own, which
        go before this one in the list; tensorflow has to be installed besides.
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
        around_app=_data_parallel if backend == "jax" else None,
    )


def _install_keras(image: Image, cluster: Any, backend: str, package: str) -> Image:
    image = install(image, [package])
    return replace(image, env={**image.env, "KERAS_BACKEND": backend})


def _backend(info: InstanceInfo, backend: str) -> AbstractContextManager[None]:
    check_installed("keras")
    check_installed(backend)  # keras itself would say so in the middle of a cell
    return environment({"KERAS_BACKEND": backend})


@contextmanager
def _data_parallel(info: InstanceInfo) -> Iterator[None]:
    if "JAX_NUM_PROCESSES" not in os.environ:  # the ranks are not connected
        yield
        return
    with needs("keras", "keras"):
        import keras
    from jax.experimental import multihost_utils

    # Else the first weights would not be the same on all ranks, and never become so.
    seed = multihost_utils.broadcast_one_to_all(secrets.randbits(31))
    keras.utils.set_random_seed(int(seed))
    everywhere = keras.distribution.DataParallel(
        devices=keras.distribution.list_devices(), auto_shard_dataset=False
    )
    keras.distribution.set_distribution(everywhere)
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)
