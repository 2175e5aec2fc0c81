"""Errors that only a notebook has."""

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
    """A cell does not compile; it was not sent anywhere."""

    def __init__(self, error: SyntaxError, place: CellPlace) -> None:
        line = (error.lineno or 1) + place.above
        super().__init__(f"{error.msg} (line {line})")
        _, *code = traceback.format_exception_only(error)
        self._text = "".join([f"  Cell {place.title}, line {line}\n", *code])

    def _render_traceback_(self) -> list[str]:
        return [self._text.rstrip()]


def advise(error: RemoteError, namespace: Mapping[str, Any]) -> None:
    """Say of a name that ranks do not have, but the notebook has, how it gets to them.

    It was not seen that the cell needs it, because it is in a text that the cell evaluates, or
    because `--in` left it out.
    """
    missing = re.match(r"name '(\w+)' is not defined", str(error))
    if isinstance(error, NameError) and missing:
        name = missing[1]
        if name in namespace and not is_predefined(name, namespace):
            error.advice = f"the notebook has {name}: `%sky push {name}` sends it to the ranks"
