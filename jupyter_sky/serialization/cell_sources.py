"""The source and title of the notebook's cells, for tracebacks in other processes."""

from __future__ import annotations

import gc
import linecache
import sys
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

Cells = Mapping[str, tuple[str, str]]
"""Source and title of cells, by the file name of their code; the title may be empty."""


def shell_of(namespace: Mapping[str, Any]) -> Any:
    """Return the IPython shell that a namespace belongs to; ``None`` for that of a script."""
    return getattr(namespace.get("get_ipython"), "__self__", None)


def find(files: Iterable[str], namespace: Mapping[str, Any]) -> Cells:
    """Return those among ``files`` that are cells of the notebook with this namespace."""
    return {file: (text, title(file, namespace)) for file in files if (text := _source(file))}


def title(file: str, namespace: Mapping[str, Any]) -> str:
    """Return the title of a cell in the notebook, like ``In[3]``; empty if it has none."""
    compiler = getattr(shell_of(namespace), "compile", None)
    label = compiler.format_code_name(file) if compiler else None
    return label[1] if label else ""


def _source(file: str) -> str | None:
    # A cell has no file that another process could read: only linecache has its lines.
    entry = linecache.cache.get(file)
    if entry is None or len(entry) != 4 or entry[1] is not None:
        return None
    return "".join(entry[2])


titles: dict[str, str] = {}
"""Titles of another process's cells, by the file name of their code; the latest are last."""

remembered = 0
"""How often a title was remembered: who writes them down looks whether there are new ones."""

_KEPT = 500
"""Cells whose source is kept whatever is left of them; of older ones, that of live functions."""


def register(cells: Cells) -> None:
    """Add cells of another process to `linecache`, where tracebacks find them."""
    for file, (text, name) in cells.items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        remember(file, name)


def remember(file: str, name: str) -> None:
    """Remember the title of a cell, and forget old cells of which nothing is left."""
    global remembered
    if titles.get(file) == name and next(reversed(titles)) == file:
        return  # the cell before is run again
    titles.pop(file, None)
    titles[file] = name
    remembered += 1
    if len(titles) > _enough:
        _forget_old()


_enough = 2 * _KEPT


def _forget_old() -> None:
    """Forget the sources that no traceback can need: neither a function nor a new cell has them."""
    global _enough
    # Not by `isinstance`, which would run code of objects that stand for others.
    functions = (each for each in gc.get_objects() if type(each) is FunctionType)
    used = {each.__code__.co_filename for each in functions}
    for file in list(titles)[:-_KEPT]:
        if file not in used:
            del titles[file]
            linecache.cache.pop(file, None)
    _enough = len(titles) + _KEPT


_BY_FRAME = ("__executing_cache", "__source_cache_with_lines")


def drop_traceback_caches() -> None:
    """Drop what IPython's tracebacks keep of cells, and of other code that is in no file.

    They keep code, lines and syntax trees of every frame that was ever shown. For libraries that is
    worth it: to read one as large as torch takes a second. But a cell is compiled anew each time
    that it runs, and what was kept of it is never found again.
    """
    # Both are there when a traceback has been made. Another version of them may keep less.
    stack_data, executing = map(sys.modules.get, ("stack_data", "executing.executing"))
    if stack_data is None or executing is None:
        return
    for name in _BY_FRAME:
        cache: dict[Any, Any] = vars(stack_data.Source).get(name, {})
        for key in [each for each in cache if _is_fleeting(each[0])]:
            del cache[key]
    # These are by syntax tree, do not say of which file, and are found anew within a moment.
    for function in (
        getattr(executing, "statement_containing_node", None),
        getattr(stack_data.Source, "statements_at_line", None),
    ):
        if clear := getattr(function, "cache_clear", None):
            clear()


def _is_fleeting(code: Any) -> bool:
    file = getattr(code, "co_filename", code)  # the key is of a piece of code, or of a file
    return isinstance(file, str) and (file.startswith("<") or file in titles)
