"""Keras: installed on the nodes, with its backend chosen before it is imported."""

from __future__ import annotations

import functools
import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._environment import environment
from jupyter_sky.plugins._install import check_installed, install, needs, requirement
from jupyter_sky.providers.spec import Image

_SAVING = ("save_model", "save_weights_only")
_FILES = (".keras", ".h5")


def keras(backend: Literal["jax", "torch", "tensorflow"], version: str = "latest") -> Plugin:
    """Install Keras on the nodes and choose its backend.

    If the jax plugin precedes it in the list, ``fit`` is data-parallel over all ranks: each
    provides its own share of the batches, as from `jupyter_sky.shard`, and all have the same
    weights. ``keras.distribution.set_distribution(None)`` returns to a single rank, as `predict`
    requires. With other backends, each rank trains its own model.

    Keras draws initial weights from Python's `random`, which therefore begins alike on all ranks.
    After ranks have used it differently, as in a cell on one of them, a new model fails with
    "passed to device_put is not the same on each process": call ``keras.utils.set_random_seed(0)``
    on all ranks first. All ranks may save a model in the same folder: each replaces the file by its
    own, which is the same. Callbacks that remove folders, as `BackupAndRestore`, need one for each.

    Parameters
    ----------
    backend
        ``"jax"``, ``"torch"`` or ``"tensorflow"``. The first two have plugins, which must precede
        this one in the list; tensorflow must be installed separately.
    version
        ``"latest"``, a version like ``"3.5.0"``, or a constraint like ``">=3.5"``.

    Raises
    ------
    UsageError
        If an argument is invalid.
    """
    if backend not in ("jax", "torch", "tensorflow"):
        raise UsageError(f'backend={backend!r} is unknown: type "jax", "torch" or "tensorflow".')
    return Plugin(
        "keras",
        transform=partial(_install_keras, backend=backend, package=requirement("keras", version)),
        around_process=partial(_backend, backend=backend),
        around_app=_data_parallel if backend == "jax" else None,
        preload=("keras",),  # it takes two seconds; the nodes have the variable that it reads
    )


def _install_keras(image: Image, cluster: Any, backend: str, package: str) -> Image:
    image = install(image, [package])
    return replace(image, env={**image.env, "KERAS_BACKEND": backend})


def _backend(info: InstanceInfo, backend: str) -> AbstractContextManager[None]:
    check_installed("keras")
    check_installed(backend)  # Keras itself would only say so in the middle of a cell
    return environment({"KERAS_BACKEND": backend})


@contextmanager
def _data_parallel(info: InstanceInfo) -> Iterator[None]:
    if "JAX_NUM_PROCESSES" not in os.environ:  # the ranks are not connected
        yield
        return
    with needs("keras", "keras"):
        import keras
    from jax.experimental import multihost_utils

    # Otherwise the initial weights would differ between ranks, and never become equal.
    seed = multihost_utils.broadcast_one_to_all(secrets.randbits(31))
    keras.utils.set_random_seed(int(seed))
    everywhere = keras.distribution.DataParallel(
        devices=keras.distribution.list_devices(), auto_shard_dataset=False
    )
    keras.distribution.set_distribution(everywhere)
    try:
        with _saving_apart(info.rank):
            yield
    finally:
        keras.distribution.set_distribution(None)


@contextmanager
def _saving_apart(rank: int) -> Iterator[None]:
    """Let each rank write a file of its own, which then takes the place of the one that is meant.

    With the same file, ranks on one disk would write into each other's, or find it locked.
    """
    saving_lib: Any = None
    with suppress(ImportError):  # private to Keras: another version may lack it
        saving_lib = importlib.import_module("keras.src.saving.saving_lib")
    functions = {name: getattr(saving_lib, name) for name in _SAVING if hasattr(saving_lib, name)}
    for name, save in functions.items():
        setattr(saving_lib, name, _through_own_file(save, rank))
    try:
        yield
    finally:
        for name, save in functions.items():
            setattr(saving_lib, name, save)


def _through_own_file(save: Any, rank: int) -> Any:
    @functools.wraps(save)
    def saved(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        path = Path(filepath) if isinstance(filepath, str | Path) else None
        # It may also be open already, or stand for several files.
        if path is None or not path.parent.is_dir() or path.suffix not in _FILES:
            return save(model, filepath, *args, **kwargs)
        own = path.with_name(f".rank-{rank}-{path.name}")
        try:
            result = save(model, str(own), *args, **kwargs)
            own.replace(path)
        finally:
            own.unlink(missing_ok=True)
        return result

    return saved
