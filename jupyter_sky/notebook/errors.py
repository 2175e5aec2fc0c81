"""Errors of cells, and advice beside the errors of ranks."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import Any

from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.cluster.namespace.packing import is_predefined
from jupyter_sky.cluster.runs.task import CellPlace
from jupyter_sky.errors import UsageError


class InvalidCell(UsageError):
    """A cell does not compile, so it was not sent to any rank."""

    def __init__(self, error: SyntaxError, place: CellPlace) -> None:
        line = (error.lineno or 1) + place.above
        super().__init__(f"{error.msg} (line {line})")
        _, *code = traceback.format_exception_only(error)
        self._text = "".join([f"  Cell {place.title}, line {line}\n", *code])

    def _render_traceback_(self) -> list[str]:
        return [self._text.rstrip()]


def advise(error: RemoteError, namespace: Mapping[str, Any]) -> None:
    """Add to a remote NameError how the name gets to the ranks, if the notebook has it.

    A cell's names are found in its syntax tree. A name that it uses only in a text that it
    evaluates is not found, and one that ``--in`` leaves out is not sent.
    """
    missing = re.match(r"name '(\w+)' is not defined", str(error))
    if isinstance(error, NameError) and missing:
        name = missing[1]
        if name in namespace and not is_predefined(name, namespace):
            error.advice = f"the notebook has {name}: `%sky push {name}` sends it to the ranks"
