"""Errors that only a notebook has."""

from __future__ import annotations

import traceback

from jupyter_sky.errors import UsageError


class InvalidCell(UsageError):
    """A cell does not compile; it was not sent anywhere."""

    def __init__(self, error: SyntaxError) -> None:
        super().__init__(f"{error.msg} (line {error.lineno})")
        self._lines = traceback.format_exception_only(error)

    def _render_traceback_(self) -> list[str]:
        return ["".join(self._lines).rstrip()]
