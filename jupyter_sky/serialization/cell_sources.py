"""The notebook's cells as tracebacks show them: their text, and what they are called."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping
from typing import Any

Cells = Mapping[str, tuple[str, str]]
"""Cells by the file name that their code has: the text of each, and its title if it has one."""


def shell_of(namespace: Mapping[str, Any]) -> Any:
    """Return the IPython shell that a namespace belongs to; ``None`` for that of a script."""
    return getattr(namespace.get("get_ipython"), "__self__", None)


def find(files: Iterable[str], namespace: Mapping[str, Any]) -> Cells:
    """Return those among ``files`` that are cells of the notebook with this namespace."""
    return {file: (text, title(file, namespace)) for file in files if (text := _text(file))}


def title(file: str, namespace: Mapping[str, Any]) -> str:
    """Return what a cell is called in the notebook, like ``In[3]``; empty if it has no title."""
    compiler = getattr(shell_of(namespace), "compile", None)
    label = compiler.format_code_name(file) if compiler else None
    return label[1] if label else ""


def _text(file: str) -> str | None:
    # A cell has no file that the other side could read; only IPython's cache has its lines.
    entry = linecache.cache.get(file)
    if entry is None or len(entry) != 4 or entry[1] is not None:
        return None
    return "".join(entry[2])


titles: dict[str, str] = {}
"""Of cells of another process, by file."""


def learn(cells: Cells) -> None:
    """Have tracebacks of this process show cells of another."""
    for file, (text, name) in cells.items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        titles[file] = name
