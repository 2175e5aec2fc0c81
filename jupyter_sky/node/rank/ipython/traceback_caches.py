"""What IPython's tracebacks remember of code, so that it does not grow with each error.

They keep code, lines and syntax trees of every frame that was ever shown. For libraries that is
worth it: to read one as large as torch takes a second. But a cell is compiled anew each time that
it runs, and what was kept of it is never found again.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_sky.serialization import cell_sources

_BY_FRAME = ("__executing_cache", "__source_cache_with_lines")


def drop_cells() -> None:
    """Drop what is kept of cells, and of other code that is in no file."""
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
    return isinstance(file, str) and (file.startswith("<") or file in cell_sources.titles)
