"""Keeps a folder on the nodes like the notebook's, before each run; says what a run wrote there."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.cluster.runs.shared_turn import SharedTurn
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.formatting import format_list
from jupyter_sky.notebook.options.ranks import first_ranks, on_nodes_of
from jupyter_sky.notebook.output.progress import NoticeLine, SendingLine
from jupyter_sky.notebook.project.sending import send_ahead, task_that_sends
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.folders import FolderIndex, read_folder
from jupyter_sky.transport.blobs.sent_folders import record_path

_NAMED = 5  # files that a run has written
_LONGEST = 100  # characters of the name of one


class Workdirs:
    """The folders of this computer that clusters have, as they were sent last.

    Scripts and other notebooks send folders of theirs to the same place. So what nodes have
    recorded about it is looked at before each run.
    """

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self._records: dict[str, dict[int, list[tuple[int, int]]]] = {}
        self._index = FolderIndex()

    def keep(
        self,
        shell: InteractiveShell,
        cluster: Cluster,
        folder: Path,
        limit: float | None,
        ranks: Sequence[int],
        turn: SharedTurn | None,
    ) -> None:
        """Make the folder that ranks run in like one of this computer, if it is not yet.

        Where nodes see the files of this computer, ranks go to the folder itself. All nodes get the
        folder; those of ``ranks`` are asked whether they have had another since. Runs that do this
        are in the ``turn``, if one is kept.

        Raises
        ------
        UsageError
            When it is too large.
        SkyError
            When something is in the way on a node.
        """
        processes = [[rank.rank, rank.pid] for rank in cluster.state.ranks]
        if cluster.sync.shares_files:
            mark = json.dumps([str(folder), processes])
            if mark != self._kept.get(cluster.id):
                go = pickling.dump(partial(os.chdir, str(folder)), "the folder")
                call, parts = blobs.pack(go)
                ranks = cluster.all_ranks
                _run(cluster, Task(ranks, call=call, blobs=parts, show=(), turn=turn))
                self._kept[cluster.id] = mark
            return
        content = read_folder(folder, limit=limit, index=self._index)
        text = json.dumps([content.folder, processes], sort_keys=True)
        mark = hashlib.sha256(text.encode()).hexdigest()
        first = first_ranks(cluster, cluster.all_ranks)
        record = str(record_path(content.folder))
        is_kept = mark == self._kept.get(cluster.id)
        if is_kept:
            known = self._records.get(cluster.id, {})
            asked = on_nodes_of(cluster, first, ranks)
            stamps = cluster.files.stamps(asked, record)
            # A node that does not answer has it, as far as is known: to send it would wait.
            if all(stamp == known.get(rank) for rank, stamp in stamps.items()):
                return
        [content] = send_ahead(shell, cluster, [content], first, turn)
        leaving = sum(content.blobs[key].nbytes for key in cluster.lacking(content.blobs))
        task = task_that_sends(content, first, f"send {folder.name}", turn)
        with SendingLine(shell, cluster.name, {folder.name: leaving}) as sending:
            _run(cluster, task, sending.update)
        self._kept[cluster.id] = mark
        self._records[cluster.id] = cluster.files.stamps(first, record)


def _run(
    cluster: Cluster,
    task: Task,
    sending: Callable[[TransferProgress], object] = lambda progress: None,
) -> None:
    run = cluster.run(task)
    run.follow(sending=sending)
    run.check()


def say_written(shell: InteractiveShell, cluster: Cluster, ranks: Sequence[int]) -> None:
    """Say which files the last run has written on nodes, and how they come here."""
    if cluster.sync.shares_files:
        return
    said = cluster.files.written(first_ranks(cluster, ranks))
    found = {rank: [each for each in names if _is_shown(each)] for rank, names in said.items()}
    every = list(dict.fromkeys(name for names in found.values() for name in names))
    if not every:
        return
    shown = every[:_NAMED]
    words = [shlex.quote(name.rstrip("/")) for name in shown]
    where = [rank for rank, names in found.items() if names]
    if where != [0]:
        is_all = len(where) == len(cluster.state.nodes)
        words += ["--ranks", "all" if is_all else ",".join(map(str, where))]
    more = f" and {len(every) - len(shown)} more" if len(every) > len(shown) else ""
    NoticeLine(shell, cluster.name).update(
        f"wrote {format_list(shown)}{more}: `%sky get {' '.join(words)}` brings "
        f"{'it' if len(shown) == 1 else 'these'} here"
    )


def _is_shown(name: str) -> bool:
    # A node says what it likes: what is shown is a name, and nothing else.
    return name.isprintable() and 0 < len(name) <= _LONGEST and "`" not in name
