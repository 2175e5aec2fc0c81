"""Models, layers and optimizers of Keras, which Keras pickles as an archive with the time in it.

The archive of an unchanged model would be another one each second: the model would be sent with
each cell, in place of what a rank has trained. So what travels are the archive's files, without the
time, and the notebook's own classes and functions that they name.

Under the distribution that Keras trains with on JAX, each variable that it makes is compared
between all ranks. A rank that saves or receives a model alone would wait for the others.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

_METADATA, _TIME, _CONFIG = "metadata.json", "date_saved", "config.json"

_VARIABLE = "KERAS_BACKEND"

_received: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""What of the notebook came with a model: a rank need not have it under a name."""

_UNUSED_OPTIMIZER = "Skipping variable loading for optimizer .* saved optimizer has [0-2] variables"
"""Said of one that has made no step yet, where it is loaded with its model."""


def is_saved(obj: Any) -> bool:
    """Return whether Keras saves an object as a whole, also where it trains with torch."""
    saving = sys.modules.get("keras.src.saving.keras_saveable")
    return saving is not None and isinstance(obj, saving.KerasSaveable)


def reduce(obj: Any) -> Any:
    """Return what ``obj.__reduce__`` should, for an object that Keras saves.

    Parameters
    ----------
    obj
        Any object.

    Returns
    -------
    tuple
        As ``__reduce__`` returns; ``NotImplemented`` for others.
    """
    if not is_saved(obj):
        return NotImplemented
    with _without_distribution():
        reduced = obj.__reduce__()
    match reduced:
        case load, (io.BytesIO() as archive,):
            files = _files(archive)
            # The backend is read before `load` is looked up, which imports Keras.
            return _load, (_Backend(_backend()), load, files, _of_notebook(obj, files))
    return reduced  # the user's own class says how it is pickled


def _files(archive: io.BytesIO) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        files = {name: opened.read(name) for name in opened.namelist()}
    if _METADATA in files:
        known = json.loads(files[_METADATA])
        files[_METADATA] = json.dumps({**known, _TIME: ""}).encode()
    return files


def _of_notebook(obj: Any, files: dict[str, bytes]) -> dict[str, Any]:
    """Return the classes and functions of the user's that an archive names, by these names."""
    layers = obj._flatten_layers() if hasattr(obj, "_flatten_layers") else [obj]
    kinds = {type(each).__name__: type(each) for each in layers}
    known = {**vars(sys.modules["__main__"]), **_received.get(obj, {}), **kinds}
    found = {}
    for name in sorted({*_names(json.loads(files.get(_CONFIG, b"{}")))}):
        value = known.get(name.rpartition(">")[2])  # "package>name" if Keras has registered it
        is_own = isinstance(value, (type, FunctionType)) and not value.__module__.startswith(
            "keras"
        )
        if is_own:
            found[name] = value
    return found


def _names(config: Any) -> Iterator[str]:
    """Yield the names of classes and functions in what Keras writes of objects."""
    if isinstance(config, dict):
        names = [config.get("class_name"), config.get("registered_name"), config.get("config")]
        yield from (each for each in names if isinstance(each, str))
    if isinstance(config, (dict, list)):
        for each in config.values() if isinstance(config, dict) else config:
            yield from _names(each)


class _Backend:
    """The backend that a process imports Keras with if it has not chosen one itself.

    Otherwise a notebook could not load what ranks have trained with JAX or torch: the default is
    TensorFlow, whether it is installed or not.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return _import_keras, (self.name,)


def _backend() -> str:
    import keras

    return str(keras.backend.backend())


def _backend_of_file() -> str:
    """Return the backend that the user's ``keras.json`` names, if any."""
    folder = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    try:
        return str(json.loads(Path(folder, "keras.json").read_text()).get("backend", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _import_keras(backend: str) -> None:
    """Import Keras with a backend that is installed, unless that was chosen already."""
    if "keras" in sys.modules or _VARIABLE in os.environ or not find_spec(backend):
        return
    # Keras writes its default there itself, whether that is installed or not.
    if (chosen := _backend_of_file()) and find_spec(chosen):
        return
    os.environ[_VARIABLE] = backend
    try:
        importlib.import_module("keras")
    finally:
        del os.environ[_VARIABLE]


def _load(
    _: None,
    load: Callable[[io.BytesIO], Any],
    files: dict[str, bytes],
    of_notebook: dict[str, Any],
) -> Any:
    import keras

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    archive.seek(0)
    with (
        keras.saving.custom_object_scope(of_notebook),
        warnings.catch_warnings(),
        _without_comparison(),
    ):
        warnings.filterwarnings("ignore", _UNUSED_OPTIMIZER)
        made = load(archive)
    _received[made] = {name.rpartition(">")[2]: value for name, value in of_notebook.items()}
    return made


@contextmanager
def _without_distribution() -> Iterator[None]:
    import keras

    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


@contextmanager
def _without_comparison() -> Iterator[None]:
    """Let JAX not compare what it gets with other ranks': all receive the same pickle."""
    hosts: Any = sys.modules.get("jax.experimental.multihost_utils")
    if hosts is None:
        yield
        return
    before = hosts.assert_equal
    hosts.assert_equal = lambda *args, **options: None
    try:
        yield
    finally:
        hosts.assert_equal = before
