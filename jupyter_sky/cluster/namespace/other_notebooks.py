"""Whether other notebooks use the ranks' names too, which is said once."""

from __future__ import annotations


class OtherNotebooks:
    """What this notebook has to be told of others that run something on its cluster.

    Each notebook sends a name when it has assigned or changed it there, and does not hear of what
    others have sent or bound in the meantime.
    """

    def __init__(self) -> None:
        self._have_run = self._is_told = False

    def have_run(self) -> None:
        """Take notice that another notebook has run something."""
        self._have_run = True

    def notice(self, cell: str | None) -> str:
        """Return what a cell should say of that; empty after the first time, and without a cell."""
        if self._is_told or not self._have_run or cell is None:
            return ""
        self._is_told = True
        return (
            "another notebook or terminal has run something here too: of a name that both have, "
            "ranks have what was assigned last in either; `%sky push NAME` sends this notebook's"
        )
