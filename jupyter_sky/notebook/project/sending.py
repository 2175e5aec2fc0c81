"""Sends large folders portion by portion.

A run brings each portion and writes it on the nodes, which need no more temporary space than that.
After a broken link or a Stop, sending resumes where it ended.
"""

from __future__ import annotations

import glob
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.files.bring import Download
from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.cluster.runs.shared_turn import SharedTurn
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.formatting import format_bytes
from jupyter_sky.serialization import folders
from jupyter_sky.serialization.folders import FolderContent
from jupyter_sky.transport.blobs.sent_folders import record_folder, record_path, unfinished_name
from jupyter_sky.transport.protocol.agent_requests import FoundFile
from jupyter_sky.transport.protocol.messages import Script

_STEPS = 20  # between two updates of the display


class PartlySent(Interrupted):
    """The user stopped a large folder on its way: what has arrived is not sent again."""


def send_ahead(
    shell: InteractiveShell,
    cluster: Cluster,
    contents: Iterable[FolderContent],
    ranks: Sequence[int],
    turn: SharedTurn | None = None,
) -> tuple[FolderContent, ...]:
    """Send all but the last portion of large folders.

    Parameters
    ----------
    shell
        The shell of the notebook.
    cluster
        The cluster.
    contents
        The folders.
    ranks
        A rank of each node that should get them.
    turn
        The turn that the runs that send them share with others, if they do.

    Returns
    -------
    tuple of FolderContent
        What remains to be sent.

    Raises
    ------
    PartlySent
        If the user stops it.
    SkyError
        If it cannot be sent, or something is in the way on a node.
    """
    return tuple(
        _send(shell, cluster, each, ranks, turn) if each.size > folders.PORTION else each
        for each in contents
    )


def task_that_sends(
    content: FolderContent, ranks: Sequence[int], title: str, turn: SharedTurn | None = None
) -> Task:
    """Return a task that only writes a folder on the nodes, in a turn that is shared, if any."""
    script: Script = {
        "text": ":",
        "env": {},
        "folders": [content.folder],
        "cwd": "",
        "together": False,
        "port": 0,
    }
    return Task(tuple(ranks), script=script, blobs=content.blobs, show=(), title=title, turn=turn)


def _send(
    shell: InteractiveShell,
    cluster: Cluster,
    content: FolderContent,
    ranks: Sequence[int],
    turn: SharedTurn | None,
) -> FolderContent:
    every = [_bytes_there(cluster, rank, content) for rank in ranks]
    here = {path: min(each[path] for each in every) for path in set.intersection(*map(set, every))}
    left = content.size - sum(here.values())
    names = [PurePosixPath(content.folder["target"], each) for each in content.folder["files"]]
    title = str(names[0]) if len(names) == 1 else content.folder["target"]
    what = f"{title or 'files'} ({format_bytes(left)})"
    sent = size = 0
    with ProgressLine(shell, cluster.name) as line:

        def show(progress: TransferProgress | None = None) -> None:
            arrived = sent + (size * progress.share if progress else 0)
            share = int(_STEPS * arrived / left) * 100 // _STEPS
            line.update(f"sending {what}" + (f": {share}%" if share else ""))

        try:
            for portion in content.portions(here):
                if not portion.folder.get("more"):
                    if sent:
                        line.update(f"sent {what} in {line.seconds:.1f} s")
                    return portion
                size = sum(each.nbytes for each in portion.blobs.values())
                show()
                run = cluster.run(task_that_sends(portion, ranks, f"send {title}", turn))
                run.follow(sending=show)
                run.check()
                sent += size
        except (Interrupted, KeyboardInterrupt):
            raise PartlySent(
                f"{what} did not go as a whole: the same line goes on where it was stopped."
            ) from None
    raise AssertionError("a folder has a last portion")


def _bytes_there(cluster: Cluster, rank: int, content: FolderContent) -> dict[str, int]:
    """Return how much of each file a node has: all of it, or the part of a large file so far.

    A file that was changed there since it was sent counts as missing.
    """
    folder, root = content.folder, PurePosixPath(content.folder["target"])
    names = {
        path: unfinished_name(PurePosixPath(path).name, folder["files"][path])
        for path in content.large
    }
    unfinished = [root / PurePosixPath(path).with_name(name) for path, name in names.items()]
    record = _find(cluster, rank, [record_path(folder)])
    sent = _read_record(cluster, rank, record[0]) if record else {}
    known = [
        path for path, file in folder["files"].items() if sent.get(path, [""])[0] == file["blob"]
    ]
    found = _find(cluster, rank, [*unfinished, *(root / path for path in known)])
    by_name = {PurePosixPath(each["path"]).name: each["size"] for each in found}
    here = {path: by_name[name] for path, name in names.items() if name in by_name}
    if record:
        above = PurePosixPath(record[0]["path"]).parent / root.relative_to(record_folder(folder))
        by_path = {each["path"]: each for each in found}
        for path in known:
            file = by_path.get(str(above / path))
            if file and [file["changed"], file["size"]] == sent[path][1:]:
                here[path] = file["size"]
    return here


def _find(cluster: Cluster, rank: int, places: Sequence[PurePosixPath]) -> list[FoundFile]:
    return cluster.files.find(rank, [glob.escape(str(each)) for each in places])["files"]


def _read_record(cluster: Cluster, rank: int, record: FoundFile) -> dict[str, list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "record")
        cluster.files.bring(rank, [Download(record, place)], lambda count: None)
        try:
            said = json.loads(place.read_text())
        except ValueError:
            return {}
    entries = said.items() if isinstance(said, dict) else ()
    return {path: each for path, each in entries if isinstance(each, list) and len(each) == 3}
