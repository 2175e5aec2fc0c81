"""Data frames of pandas, as containers of columns. pandas is never imported here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection
from typing import Any

from jupyter_sky.analysis.labels import EVERYTHING, item_label

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


def can_take_over(present: Any, received: Any, changes: Collection[str]) -> bool:
    """Return whether columns of the notebook's frame fit into that of a rank."""
    same = is_frame(present) and present.index.equals(received.index)
    return same and EVERYTHING not in changes


def take_over(present: Any, received: Any, changes: Collection[str]) -> None:
    """Change the columns of a rank's frame as those of the notebook's were changed."""
    with warnings.catch_warnings(action="ignore"):  # what they say of the user's code is known
        for name in [*present.columns]:
            if item_label(name) in changes and name not in received.columns:
                del present[name]
        for name in received.columns:
            if item_label(name) in changes:
                present[name] = received[name]
        if {*present.columns} == {*received.columns}:
            for position, name in enumerate(received.columns):
                if present.columns[position] != name:
                    present.insert(position, name, present.pop(name))
