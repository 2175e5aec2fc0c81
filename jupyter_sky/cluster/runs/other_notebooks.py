"""Notices, each shown once, about what other notebooks and earlier kernels have run."""

from __future__ import annotations

from jupyter_sky.cluster.inventory import owed_runs
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.formatting import format_list
from jupyter_sky.transport.tasks import blocking

# Values are unpickled only if this computer's registry knows that they were asked for.
UNKNOWN_NAMES = (
    "the registry of this computer does not have the names that the run should bring back: get "
    "them with `%sky pull NAMES` when the run is over"
)


class OtherNotebooks:
    """Remembers whether other notebooks have run something on the cluster, and whether it was said.

    Each notebook sends a name when it has assigned or changed it itself, and does not know what
    other notebooks have sent or bound in the meantime.
    """

    def __init__(self) -> None:
        self._have_run = self._is_told = False
        self._is_missed_told = False

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

    async def say_missed(self, cluster: str, unseen: Run | None, run: Run) -> None:
        """Say in the cell of a run that an earlier kernel has left another one.

        One that is over, and whose values have come, was most likely shown: its kernel ended within
        the second in which it would have told nodes so.
        """
        if unseen is None or self._is_missed_told or run.in_background or not run.task.title:
            return
        self._is_missed_told = True
        if unseen.finished and not await blocking(owed_runs.owes, cluster, unseen.id):
            return
        names = sorted({name for each in unseen.task.values.values() for name in each})
        brings = f" and brings {format_list(names)} here" if names else ""
        run.on_notice(
            f"`{unseen.task.title or 'a run'}` was started by an earlier kernel: `%sky attach` "
            f"shows its output{brings}"
        )
