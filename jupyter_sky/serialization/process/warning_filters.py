"""Which warnings the notebook ignores, so that ranks ignore them as well.

``warnings.filterwarnings("ignore")`` stands in the first cell of many notebooks. What makes more of
a warning than usual stays here, and so do categories of libraries: a rank would have to import
them.
"""

from __future__ import annotations

import builtins
import contextlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_sky.serialization.process.setting import ProcessSetting

Ignored = tuple[str, str, str, int]
"""A filter: the pattern of its messages, its category, the pattern of its modules, its line."""

_BY_PYTHON: frozenset[Ignored] = frozenset(
    ("", category.__name__, "", 0)
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
)


@dataclass(frozen=True)
class WarningFilters(ProcessSetting):
    """The warnings that are ignored, beside those that Python ignores.

    Attributes
    ----------
    ignored
        Their filters, in the order in which they are looked at.
    """

    ignored: tuple[Ignored, ...]

    @classmethod
    def here(cls) -> WarningFilters:
        """Return those of this process."""
        filters: Any = warnings.filters
        found = [
            (_pattern(message), category.__name__, _pattern(module), line)
            for action, message, category, module, line in filters
            if action == "ignore" and category.__module__ == "builtins"
        ]
        return cls(tuple(each for each in found if each not in _BY_PYTHON))

    def install(self, store: Path) -> None:
        """Ignore them in this process, in place of those that were installed before."""
        filters: Any = warnings.filters
        for each in _installed:
            with contextlib.suppress(ValueError):  # the user has removed it
                filters.remove(each)
        _installed.clear()
        for message, category, module, line in reversed(self.ignored):
            warnings.filterwarnings("ignore", message, vars(builtins)[category], module, line)
            _installed.append(filters[0])


class FilterWatch:
    """Finds out which warnings are ignored; as long as no filter changes, without looking again."""

    def __init__(self) -> None:
        self._seen: list[object] = []
        self._found = WarningFilters(())

    def here(self) -> WarningFilters:
        """Return those of this process."""
        # It is asked before each run. A filter is a tuple, so that none changes in its place.
        filters: Any = warnings.filters
        if filters != self._seen:
            self._seen, self._found = list(filters), WarningFilters.here()
        return self._found


_installed: list[Any] = []


def _pattern(compiled: Any) -> str:
    return getattr(compiled, "pattern", compiled) or ""
