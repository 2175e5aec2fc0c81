"""The image that the options of a cell describe."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.environment.files import read_file
from jupyter_sky.api.environment.imports import modules_in, modules_typed
from jupyter_sky.api.environment.requirements import EnvironmentFile
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.options import environment
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.providers.spec import Image, PipIndex

_NO_FILES = (None, *environment.WORDS)


def image_of(options: CellOptions) -> Image:
    """Return the image that options describe.

    Raises
    ------
    UsageError
        If they name a folder that does not exist or has no wheels.
    """
    like = options.env or "imports"
    image = Image(
        pip=options.pip,
        like=None if like == "none" else like,
        includes=options.include,
        env=dict(options.variable),
    )
    return with_sources(image, options)


def with_sources(image: Image, options: CellOptions) -> Image:
    """Return an image that also takes packages from the options' indexes and wheels.

    Raises
    ------
    UsageError
        If there is no such folder of wheels, or no wheel in it.
    """
    indexes = [PipIndex(each) for each in options.index]
    for each in options.wheels:
        folder = Path(each).expanduser().absolute()
        if not folder.is_dir():
            raise UsageError(f"--wheels: there is no folder {folder}: name one that is there.")
        if not any(folder.glob("*.whl")):
            line = shlex.join(["download", "-d", str(folder), *(image.pip or ["PACKAGE"])])
            raise UsageError(f"--wheels: there are no wheels in {folder}: `%pip {line}` gets some.")
        indexes.append(PipIndex(str(folder)))
    kept = [each for each in image.pip_indexes if each not in indexes]
    return replace(image, pip_indexes=(*kept, *indexes))


def with_file(image: Image, options: CellOptions) -> tuple[Image, tuple[str, ...]]:
    """Return an image that takes packages from where the options' file says, and what is left out.

    Raises
    ------
    UsageError
        If the file cannot be read.
    """
    if not names_file(options):
        return image, ()
    found = file_of(options)
    return found.joined_to(image), tuple(found.left_out)


def names_file(options: CellOptions) -> bool:
    """Return whether options name a file of packages."""
    return options.env not in _NO_FILES


def file_of(options: CellOptions) -> EnvironmentFile:
    """Return what a file says that options name; nothing, if they name none.

    This may take seconds: packages are built, and locks are read by uv.

    Raises
    ------
    UsageError
        If the file cannot be read.
    """
    if not names_file(options):
        return EnvironmentFile()
    return read_file(Path(str(options.env)).expanduser())


def imported_modules(shell: InteractiveShell) -> frozenset[str]:
    """Return the modules that a notebook has imported, or that one of its cells names."""
    hidden = shell.user_ns_hidden
    own = {name: value for name, value in shell.user_ns.items() if name not in hidden}
    cells: Sequence[str] = getattr(shell.history_manager, "input_hist_raw", ())
    return modules_in(own) | modules_typed(cells)


def has_given_environment(cluster: Cluster) -> bool:
    """Return whether nodes use an environment of the user, into which nothing is installed."""
    return cluster.sync.shares_files or getattr(cluster.provider, "python", None) is not None
