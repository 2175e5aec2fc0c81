"""Data frames of pandas, as containers of columns. pandas is never imported here."""

from __future__ import annotations

import sys
from typing import Any

from jupyter_sky.analysis.labels import item_label

ROWS = " rows"
"""The label of the index: columns fit only into a frame with the same one."""


def is_frame(obj: Any) -> bool:
    """Return whether an object is a data frame whose columns can be changed one by one."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and type(obj) is pandas.DataFrame and obj.columns.is_unique


def is_pandas(obj: Any) -> bool:
    """Return whether an object is a data frame or a series."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(obj, pandas.DataFrame | pandas.Series)


def parts_of(frame: Any) -> dict[str | None, Any]:
    """Return the columns of a frame and its index, by their labels."""
    return {ROWS: frame.index, **{item_label(name): frame[name].array for name in frame.columns}}


def rest_of(frame: Any) -> tuple[Any, ...]:
    """Return what belongs to a frame besides its columns and its index."""
    return frame.attrs, *frame.columns.names


def set_rest(frame: Any, other: Any) -> None:
    """Give a frame what belongs to another one besides its columns and its index."""
    frame.attrs = other.attrs
    if frame.columns.nlevels == other.columns.nlevels:
        # Other frames may have the same index of columns, which stays as it is.
        frame.columns = frame.columns.set_names(other.columns.names)
