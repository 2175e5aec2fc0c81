"""The source and title of cells, for tracebacks in other processes than those that ran them."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from jupyter_sky.serialization.instances import instances

Cells = Mapping[str, tuple[str, str]]
"""Source and title of cells, by the file name of their code; the title may be empty."""


def shell_of(namespace: Mapping[str, Any]) -> Any:
    """Return the IPython shell of a namespace; ``None`` for the namespace of a script."""
    return getattr(namespace.get("get_ipython"), "__self__", None)


def find(files: Iterable[str], namespace: Mapping[str, Any]) -> Cells:
    """Return those of ``files`` that are cells of the notebook with this namespace."""
    return {file: (text, title(file, namespace)) for file in files if (text := _source(file))}


def title(file: str, namespace: Mapping[str, Any]) -> str:
    """Return the title of a cell, as `label` takes it; empty if it has none."""
    return first_title((file,), namespace)


def first_title(files: Iterable[str], namespace: Mapping[str, Any]) -> str:
    """Return the title of the first of ``files`` that is a cell; empty if none is."""
    compiler: Any = getattr(shell_of(namespace), "compile", None)
    for file in files if compiler else ():
        if found := compiler.format_code_name(file):
            kind, name = found
            return file if kind == "File" else str(name)
    return ""


def number(title: str) -> int | None:
    """Return the number of the notebook's cell with this title; ``None`` for other code."""
    found = re.fullmatch(r"In\[(\d+)\]", title)
    return int(found[1]) if found else None


def label(title: str) -> tuple[str, str]:
    """Return how a traceback names a cell, given its title: ``In[3]``, or a script's path."""
    return ("File", Path(title).name) if is_path(title) else ("Cell", title)


def is_path(title: str) -> bool:
    """Return whether the code with this title is part of a script, whose path it is."""
    return title.endswith(".py")


def name(title: str) -> str:
    """Return `label` as words, like ``Cell In[3]``."""
    return " ".join(label(title))


def running_frame() -> FrameType | None:
    """Return the innermost frame of a cell that runs in this thread; ``None`` if none does."""
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_code.co_filename not in titles:
        frame = frame.f_back
    return frame


def _source(file: str) -> str | None:
    # A cell is not in a file that another process could read: only linecache has its lines.
    entry = linecache.cache.get(file)
    if entry is None or len(entry) != 4 or entry[1] is not None:
        return None
    return "".join(entry[2])


def join(file: str, former: tuple[Any, ...] | None) -> None:
    """Complete the lines of one cell of a script by those of its other cells.

    Parameters
    ----------
    file
        The script, whose entry in `linecache` has the lines of the cell, and empty ones above.
    former
        The entry before, if there was one.
    """
    if former is None or len(former) != 4:
        return
    known = former[2]
    own = linecache.getlines(file)
    above = next((at for at, line in enumerate(own) if line.strip()), len(own))
    lines = [*known[:above], *own[len(known[:above]) :], *known[len(own) :]]
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


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


def receive(cells: Cells, namespace: Mapping[str, Any]) -> None:
    """Add cells that ranks have run, and that define what has come to this notebook.

    Parameters
    ----------
    cells
        The cells.
    namespace
        The namespace of the notebook, or of a script.
    """
    # Where IPython's tracebacks find the number of a cell; IPython itself forgets none of them.
    numbers = getattr(getattr(shell_of(namespace), "compile", None), "_filename_map", {})
    for file, (text, title) in cells.items():
        if is_path(title):
            _complete(file, text)
        elif file in titles or file not in linecache.cache:  # others are the notebook's own
            register({file: (text, title)})
            if (at := number(title)) is not None:
                numbers[file] = at


def _complete(file: str, text: str) -> None:
    """Complete the lines of a script by those of its cells that ranks have run."""
    lines = [
        new if new.strip() else known or new
        for new, known in zip_longest(
            text.splitlines(keepends=True), linecache.getlines(file), fillvalue=""
        )
    ]
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


def remember(file: str, name: str) -> None:
    """Remember the title of a cell, and forget old cells that nothing refers to."""
    global remembered
    if titles.get(file) == name and next(reversed(titles)) == file:
        return  # the previous cell is run again
    titles.pop(file, None)
    titles[file] = name
    remembered += 1
    if len(titles) > _enough:
        _forget_old()


_enough = 2 * _KEPT


def _forget_old() -> None:
    """Forget sources that no traceback can need: no function and no new cell has them."""
    global _enough
    [functions] = instances((FunctionType,))
    used = {each.__code__.co_filename for each in functions}
    for file in list(titles)[:-_KEPT]:
        if file not in used:
            del titles[file]
            linecache.cache.pop(file, None)
    _enough = len(titles) + _KEPT


_BY_FRAME = ("__executing_cache", "__source_cache_with_lines")


def drop_traceback_caches() -> None:
    """Drop what IPython's tracebacks cache about cells and other code that is not in files.

    They cache code, lines and syntax trees of every frame that was ever shown. This pays for
    libraries: reading one as large as torch takes a second. But a cell is compiled anew each time
    it runs, and its old entries are never used again.
    """
    # Both exist once a traceback was made. Other versions of them may cache less.
    stack_data, executing = map(sys.modules.get, ("stack_data", "executing.executing"))
    if stack_data is None or executing is None:
        return
    for name in _BY_FRAME:
        cache: dict[Any, Any] = vars(stack_data.Source).get(name, {})
        for key in [each for each in cache if _is_fleeting(each[0])]:
            del cache[key]
    # Keyed by syntax tree, without a file name, and recomputed within a moment.
    for function in (
        getattr(executing, "statement_containing_node", None),
        getattr(stack_data.Source, "statements_at_line", None),
    ):
        if clear := getattr(function, "cache_clear", None):
            clear()


def _is_fleeting(code: Any) -> bool:
    file = getattr(code, "co_filename", code)  # the key belongs to a piece of code, or to a file
    return isinstance(file, str) and (file.startswith("<") or file in titles)
