"""The notice, shown once, that other notebooks use the same ranks and names."""

from __future__ import annotations


class OtherNotebooks:
    """Remembers whether other notebooks have run something on the cluster, and whether it was said.

    Each notebook sends a name when it has assigned or changed it itself, and does not know what
    other notebooks have sent or bound in the meantime.
    """

    def __init__(self) -> None:
        self._have_run = self._is_told = False

    def have_run(self) -> None:
        """Record that another notebook has run something."""
        self._have_run = True

    def notice(self, cell: str | None) -> str:
        """Return the notice for a cell; empty if it was shown before, or this is no cell."""
        if self._is_told or not self._have_run or cell is None:
            return ""
        self._is_told = True
        return (
            "another notebook or terminal has run something here too: of a name that both have, "
            "ranks have what was assigned last in either; `%sky push NAME` sends this notebook's"
        )
