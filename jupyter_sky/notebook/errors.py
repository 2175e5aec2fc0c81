"""Errors that only a notebook has."""

from __future__ import annotations

import traceback

from jupyter_sky.cluster.run import CellPlace
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
