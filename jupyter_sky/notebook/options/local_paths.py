"""The paths of this computer in options, which are typed as they are from the current folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from jupyter_sky.notebook.options import environment, types
from jupyter_sky.notebook.options.definitions import CELL_OPTIONS, CellOptions

_FIELDS = [each.field for each in CELL_OPTIONS if each.type in types.LOCAL_PATHS]


def with_absolute_paths(options: CellOptions) -> CellOptions:
    """Return options that mean the same files from any folder.

    A cluster may be started again after ``os.chdir``, or by a notebook in another folder.
    """
    typed = {field: value for field in _FIELDS if (value := getattr(options, field))}
    if not typed:  # as in most cells
        return options
    absolute: dict[str, Any] = {
        field: _absolute(value) if isinstance(value, str) else tuple(map(_absolute, value))
        for field, value in typed.items()
    }
    return replace(options, **absolute)


def _absolute(name: str) -> str:
    return name if name in environment.WORDS else str(Path(name).expanduser().absolute())
