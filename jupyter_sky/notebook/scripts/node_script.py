"""A script that runs once on each node, and the files of this computer that it needs there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.scripts.task_file import TaskFile
from jupyter_sky.serialization.folders import FolderContent, read_folder


@dataclass(frozen=True)
class NodeScript:
    """What runs once on each node.

    Attributes
    ----------
    text
        What bash is given.
    title
        What the user calls it; every page may show it.
    env
        Variables of its environment.
    together
        Whether it ends on the other nodes when it has failed on one.
    folders
        What is sent to each node before.
    cwd
        The folder that it runs in, as `Script` has it.
    """

    text: str
    title: str
    env: dict[str, str] = field(default_factory=dict, repr=False)
    together: bool = True
    folders: tuple[FolderContent, ...] = ()
    cwd: str | None = None


def find_folder(name: str) -> Path:
    """Return a folder of this computer that was named.

    Raises
    ------
    UsageError
        When there is none.
    """
    folder = Path(name).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: name one that is there.")
    # What is in it is named from there, by paths that begin with its own.
    return folder.resolve() if ".." in folder.parts else folder


def inside(folder: Path, cluster: Cluster, limit: float | None, script: NodeScript) -> NodeScript:
    """Return a script that runs in a folder of this computer, which is sent if nodes lack it.

    ``limit`` is as of `Sky.size_limit`.

    Raises
    ------
    UsageError
        When it cannot be sent.
    """
    if cluster.sync.shares_files:
        return replace(script, cwd=str(folder))
    return replace(script, cwd="", folders=(*script.folders, read_folder(folder, limit=limit)))


def find_mounts(task: TaskFile) -> dict[str, Path]:
    """Return files and folders of this computer that a task names, by where they are to be.

    Raises
    ------
    UsageError
        When there is none.
    """
    found = {}
    for target, name in task.mounts.items():
        source = Path(task.place(name)).expanduser().absolute()
        if not source.exists():
            raise UsageError(f"file_mounts {target}: there is no {source}.")
        found[task.place(target)] = source
    return found


def mounted(mounts: Mapping[str, Path], limit: float | None, script: NodeScript) -> NodeScript:
    """Return a script that finds files of this computer at other places of its node.

    Parameters
    ----------
    mounts
        Where they are to be, from the folder that the script runs in, and where they are here.
    limit
        As of `Sky.size_limit`.
    script
        The script.

    Raises
    ------
    UsageError
        When one of them cannot be sent.
    """
    folders = list(script.folders)
    for target, source in mounts.items():
        base = "" if target.startswith("~") else script.cwd or ""
        place = PurePosixPath(base, target)
        # A record of its own: with one that it shared, it would remove what another had written.
        key = f"mount-{hashlib.sha256(target.encode()).hexdigest()[:12]}"
        if source.is_dir():
            folders.append(read_folder(source, key, str(place), limit))
        else:
            folders.append(read_folder(source, key, str(place.parent), limit, place.name))
    return replace(script, folders=tuple(folders))
