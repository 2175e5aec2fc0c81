"""A cell as typed, and the runs that are made from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.analysis.cell_title import cell_title
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.shared_turn import SharedTurn
from jupyter_sky.cluster.runs.task import HANG_AFTER, Attempt, CellPlace, Task
from jupyter_sky.formatting import without_secrets
from jupyter_sky.notebook.cells.results import bind, requested_names, select
from jupyter_sky.notebook.kernel import program_file, program_words
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.ranks import choose_ranks, shown_ranks
from jupyter_sky.notebook.project.workdir import Workdirs
from jupyter_sky.transport.protocol.debugging import Debugging
from jupyter_sky.transport.protocol.profiling import RecordKind


@dataclass(frozen=True)
class Cell:
    """Everything that a run of a cell is made from.

    Attributes
    ----------
    shell
        The shell of the notebook.
    options, code
        What the user typed.
    place
        Its place in the notebook.
    names
        The names that it uses.
    needed
        The names that are sent.
    namespace
        The namespace with their values.
    limit
        The most bytes to send; ``None`` for no limit.
    folder
        The folder that ranks run in, if it is on this computer.
    workdirs
        Keep it in sync on the nodes.
    records
        What ranks record.
    debugging
        Whether somebody can answer prompts.
    """

    shell: InteractiveShell
    options: CellOptions
    code: str
    place: CellPlace
    names: CellNames
    needed: frozenset[str]
    namespace: Mapping[str, Any]
    limit: float | None
    folder: Path | None
    workdirs: Workdirs
    records: tuple[RecordKind, ...]
    debugging: Debugging

    @property
    def title(self) -> str:
        """Its title for pages, and for a kernel that attaches to the run."""
        return without_secrets(cell_title(self.code))

    def make_run(
        self,
        cluster: Cluster,
        attempt: Attempt,
        turn: SharedTurn | None = None,
        kept: ItemCollector | None = None,
    ) -> RunHandle:
        """Return a run, for the caller to follow.

        Parameters
        ----------
        cluster
            The cluster to run on.
        attempt
            The number of the attempt.
        turn
            The turn that all attempts share, if there may be several.
        kept
            The notebook's values as the first attempt has kept them, if it has.

        Raises
        ------
        UsageError
            If the cluster cannot do what the options ask for, or a name cannot be sent.
        """
        options = self.options
        ranks = choose_ranks(cluster, options.ranks, "--ranks")
        shown = shown_ranks(cluster, options.stdout, ranks)
        if self.folder is not None:
            # Before the first attempt, nobody would give the turn back if this fails.
            kept_turn = turn if attempt.number > 1 else None
            self.workdirs.keep(self.shell, cluster, self.folder, self.limit, ranks, kept_turn)
        update = cluster.sync.update(
            self.needed,
            self._seen_on(cluster),
            ranks,
            cell=self.names,
            limit=self.limit,
            keep=options.background,
            kept=kept,
        )
        task = Task(
            ranks=ranks,
            code=self.code,
            place=self.place,
            update=update,
            values=requested_names(ranks, options.out, options.gather),
            gathered=options.gather,
            show=shown,
            title=self.title,
            hang_after=options.hang_after or HANG_AFTER,
            records=self.records,
            debugging=self.debugging,
            attempt=attempt,
            turn=turn,
            program=program_words(self.shell),
        )
        return cluster.run(task)

    def _seen_on(self, cluster: Cluster) -> Mapping[str, Any]:
        """Return the notebook's names, with ``__file__`` of a script as its path on ranks."""
        script = program_file(self.shell)
        if script is None or cluster.sync.shares_files:
            return self.namespace
        # Ranks start in a folder with the same files.
        place = f"./{os.path.relpath(script, self.folder or script.parent)}"
        return {**self.namespace, "__file__": place}

    def bind(
        self, cluster: Cluster, run: RunHandle, values: Mapping[int, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Bind the values of a run in the notebook, and return them."""
        names = (*self.options.out, *self.options.gather)
        bound = select(values, run.task.ranks, names, self.options.gather)
        return bind(self.shell, cluster, run, bound, self.options.gather)
