"""Labels: how parts of objects are named, where they are found and in what was set of them.

An attribute and an item are written as in code: ``.lr``, ``['lr']``. Some labels stand for several
parts, or for a method whose effect only the class of the object tells, like ``clear()``.
"""

from __future__ import annotations

import ast
import datetime
import enum
from numbers import Number
from pathlib import PurePath
from typing import Any

EACH = "[*]"
"""Each item, as a loop takes it; as what is set, it is one of the items."""

MODULES, PARAMETERS = "[modules]", "[parameters]"
"""Each module in a model of torch, and each of its parameters."""

ROWS = "[rows]"
"""What gives access to the rows of a data frame or series of pandas, as ``df.loc``: the object."""

EVERYTHING = "*"
"""Whatever is in an object."""

ITEMS = "[:]"
"""The items of an array; of nothing else."""

_METHOD = "()"

# Kinds of keys of which equal ones have equal texts, also those of NumPy.
_WITH_TEXT = (
    str,
    bytes,
    type(None),
    Number,
    enum.Enum,
    datetime.date,
    datetime.timedelta,
    PurePath,
)


def item_label(key: Any) -> str | None:
    """Return how an item is told from others, like ``['x']``; ``None`` for keys of other kinds."""
    parts = key if type(key) is tuple else (key,)
    if not all(isinstance(part, _WITH_TEXT) for part in parts):
        return None
    # A key of NumPy finds the same as the one of Python that it equals, which code names.
    parts = tuple(part.item() if type(part).__module__ == "numpy" else part for part in parts)
    return f"[{parts if type(key) is tuple else parts[0]!r}]"


def attribute_label(name: str) -> str:
    """Return how an attribute is told from others."""
    return f".{name}"


def method_label(name: str) -> str:
    """Return what stands for a method that is called."""
    return f"{name}{_METHOD}"


def is_item(label: str) -> bool:
    """Return whether a label is that of an item, or of each."""
    return label.startswith("[")


def key_of(label: str) -> Any:
    """Return the key of an item that code names."""
    return ast.literal_eval(label[1:-1])


def attribute_of(label: str) -> str | None:
    """Return the name of an attribute; ``None`` for other labels."""
    return label[1:] if label.startswith(".") else None


def method_of(label: str | None) -> str | None:
    """Return the name of the method that is called; ``None`` for a part that is set."""
    return label.removesuffix(_METHOD) if label and label.endswith(_METHOD) else None
