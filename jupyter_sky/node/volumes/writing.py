"""Writes files that ranks have written in a volume back to its bucket."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path, PurePosixPath

from jupyter_sky.formatting import format_list
from jupyter_sky.node.volumes.bucket import BucketError, Listed
from jupyter_sky.node.volumes.fetching import Fetcher
from jupyter_sky.node.volumes.lacking import is_mixed
from jupyter_sky.node.volumes.leases import is_being_written
from jupyter_sky.node.volumes.tree import Tree
from jupyter_sky.node.volumes.walking import links_of
from jupyter_sky.transport.volumes.requests import MARKER, WrittenVolume

_RENAME = "rename it, and it is written"
_PERMIT = "change its permissions, and what is in it is written"
_STILL_WRITTEN = "it is still being written"
_SETTLES_WITHIN = 3.0  # seconds after its last change
_ATTEMPTS = 3  # attempts at a file that is being written meanwhile


def write_back(
    tree: Tree,
    fetcher: Fetcher,
    workers: Executor,
    tells: bool,
    only: Sequence[str] = (),
    gone: Sequence[str] = (),
    settled: bool = False,
) -> WrittenVolume:
    """Write files that exist only on the node to the bucket, and return the result.

    Files that the bucket had before are only removed with a folder that is said to be gone, as an
    old save of a checkpoint. Files that this node wrote there are removed if ranks have removed
    them, once everything is written: what was moved is then there under its new name.

    Parameters
    ----------
    tells
        Whether a notebook is told the result: it hears once of each link that is not written, and
        of a folder that is gone.
    only
        The names of files and folders to write; everything by default, unless some are gone.
    gone
        The names of folders that were removed, to be removed from the bucket.
    settled
        Whether to leave files that have changed in the last seconds, and may be being written.
    """
    answer: WrittenVolume = {
        "url": tree.bucket.url,
        "path": str(tree.path),
        "files": 0,
        "size": 0,
        "left": [],
        "trouble": "",
    }
    try:
        if only or not gone:
            _write_changes(tree, fetcher, workers, answer, only, settled)
        if gone and not answer["left"]:
            _remove(tree, tree.removed(gone), answer)
        if (only or gone) and not tree.path.is_dir() and not tree.order["read_only"]:
            _note(answer, f"{tree.path} was removed")
        if tells and not answer["trouble"]:
            answer["trouble"] = _say_gone(tree) or _say_links(tree)
        tree.make_room()  # of what was written, too
    except Exception as error:  # whatever it is, other volumes are written nevertheless
        answer["trouble"] = f"{tree.path} could not be written back: {error}"
    return answer


def _write_changes(
    tree: Tree,
    fetcher: Fetcher,
    workers: Executor,
    answer: WrittenVolume,
    only: Sequence[str],
    settled: bool,
) -> None:
    """Write what ranks have changed, noting in the answer what became of each file."""
    strange = [name for name in only if _leads_elsewhere(tree, name)]
    named = [name for name in only if name not in strange]
    names = tree.changed(named) if named or not only else []
    if tree.order["read_only"]:
        _leave(answer, names, "it is read-only: leave out `:ro` where it is to be written back")
        return
    fresh = {name for name in names if _is_fresh(tree.path / name)} if settled else set()
    names = [name for name in names if name not in fresh]
    unreadable = [name for name in names if _is_folder(tree.path / name)]
    # The marker of a checkpoint comes last, since it makes the checkpoint valid.
    markers = [name for name in names if name.rpartition("/")[2] == MARKER]
    others = [name for name in names if name not in markers and name not in unreadable]
    # What changes meanwhile is not settled, and the next round takes it.
    write = partial(_write, tree, fetcher, 1 if settled else _ATTEMPTS)
    _write_files(others, write, workers, answer)
    # What leads elsewhere, or to no file, must not look as if it were written.
    known = {*names, *tree.entries}
    strange += [name for name in named if name not in known and _is_no_folder(tree.path / name)]
    _leave(answer, strange, "it is no file or folder of the volume itself")
    if fresh:
        _note(answer, _STILL_WRITTEN)
    early = [name for name in markers if _is_early(tree, name, answer["left"], fresh, workers)]
    _leave(answer, early, "other nodes have yet to write what it names")
    _write_files([each for each in markers if each not in early], write, workers, answer)
    # What is in a folder that cannot be read looks as if it were removed.
    if not (only or answer["left"] or unreadable or fresh):
        _remove(tree, tree.removed(), answer)
    answer["left"] += sorted(fresh)
    _leave(answer, unreadable, f"the folder cannot be read: {_PERMIT}")


def _leave(answer: WrittenVolume, names: Sequence[str], trouble: str) -> None:
    """Note that files were not written, if there are any, and why."""
    answer["left"] += names
    if names:
        _note(answer, trouble)


def _note(answer: WrittenVolume, trouble: str) -> None:
    """Note what went wrong, unless something did before."""
    answer["trouble"] = answer["trouble"] or trouble


def _write_files(
    names: Sequence[str],
    write: Callable[[str], tuple[int, str]],
    workers: Executor,
    answer: WrittenVolume,
) -> None:
    written = workers.map(write, names)
    for name, (size, trouble) in zip(names, written, strict=True):
        if trouble:
            _leave(answer, [name], trouble)
        else:
            answer["files"] += 1
            answer["size"] += size


def _remove(tree: Tree, names: Sequence[str], answer: WrittenVolume) -> None:
    for name in names:
        try:
            tree.bucket.remove(name)
        except BucketError as error:
            _note(answer, str(error))
        else:
            if entry := tree.entries.get(name):
                tree.forget(entry)


def _is_among(name: str, only: Sequence[str]) -> bool:
    """Return whether a name is one of these, or is below one of these; true if there are none."""
    return not only or any(name == each or name.startswith(f"{each}/") for each in only)


def _is_early(
    tree: Tree, marker: str, left: Sequence[str], fresh: Collection[str], workers: Executor
) -> bool:
    """Return whether some of what a marker makes valid is not in the bucket."""
    folder, named = marker.rpartition("/")[0], _named_by(tree, marker)
    # A log that is always fresh holds back no marker that names its parts.
    waits = left if named else [*left, *fresh]
    if any(not folder or _is_among(name, [folder]) for name in waits):
        return True
    # What other nodes have on their disks, only they can write.
    elsewhere = [name for name in named if name not in tree.entries]
    return not all(workers.map(lambda name: _is_there(tree, name), elsewhere))


def _named_by(tree: Tree, marker: str) -> list[str]:
    """Return the names of the parts that the marker of a checkpoint says it has."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        said = json.loads((tree.path / marker).read_text())
        folder = (PurePosixPath(marker).parent / said["save"]).as_posix()
        return [f"{folder}/{part}" for part in said["parts"]]
    return []  # of another program, or gone


def _is_there(tree: Tree, name: str) -> bool:
    try:
        tree.bucket.info(name)
    except BucketError:
        return False
    return True


def _leads_elsewhere(tree: Tree, name: str) -> bool:
    """Return whether what is there has another name, such as behind a link."""
    path, real = tree.path / name, f"{os.path.realpath(tree.path)}/{name}"
    return os.path.lexists(path) and os.path.realpath(path) != real


def _is_no_folder(path: Path) -> bool:
    return os.path.lexists(path) and not _is_folder(path)


def _is_fresh(path: Path) -> bool:
    """Return whether a file has changed in the last seconds; its own times may be copied ones."""
    with contextlib.suppress(OSError):
        return 0 <= time.time() - path.lstat().st_ctime < _SETTLES_WITHIN
    return False


def _is_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def _say_gone(tree: Tree) -> str:
    """Report that the folder is gone or another one: once, as with links."""
    if tree.order["read_only"] or tree.is_there() or "" in tree.told:
        return ""
    tree.told.add("")
    return f"{tree.path} was removed or replaced: nothing is removed from {tree.bucket.url} now"


def _say_links(tree: Tree) -> str:
    """Report new links that are not written: once, or they would keep a machine from ending."""
    links = [link for link in links_of(tree.path) if link not in tree.told]
    tree.told.update(links)
    if not links:
        return ""
    more = [f"{len(links) - 1} more"] if len(links) > 1 else []
    return (
        f"symbolic links are not written to {tree.bucket.url}, which cannot have any: "
        f"{format_list([f'{tree.path}/{links[0]}', *more])}"
    )


def _write(tree: Tree, fetcher: Fetcher, attempts: int, name: str) -> tuple[int, str]:
    """Write one file; return its size, and why that failed, if it did."""
    path: Path = tree.path / name
    entry = tree.entries.get(name)
    if entry and is_mixed(tree, entry):
        return 0, f"it was opened while what the bucket has could not be fetched: {_RENAME}"
    is_moved = entry is not None and entry.source != name
    with tree.lock:
        if entry and not is_moved and entry.fd is not None and tree.is_unchanged(entry):
            return 0, ""  # written beside this, and has made room: what is here are zeros
    # It may have been moved before anybody read it.
    if entry and is_moved and (trouble := fetcher.fetch(tree, entry)):
        return 0, trouble
    for _ in range(attempts):
        try:
            before = path.lstat()
            _let_changes_show(path)
            tree.bucket.write(name, path)
            if tree.is_written(name, before, _listed(tree, name, before)):
                return before.st_size, ""
        except BucketError as error:
            return 0, str(error)
        except FileNotFoundError:
            return 0, ""  # ranks have removed it meanwhile
        except OSError as error:
            return 0, error.strerror or str(error)
    # Meanwhile somebody else may have written the newer content, which this has replaced there.
    with tree.lock:
        if (entry := tree.entries.get(name)) and entry.mark:
            entry.mark = (*entry.mark[:2], 0)
    return 0, _STILL_WRITTEN


def _let_changes_show(path: Path) -> None:
    """Have each later change through a memory map show in the times of a file.

    Linux notes the first change of a page alone, until the page is on the disk.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if is_being_written(fd):  # or a large file would wait for the disk for nothing
            os.fdatasync(fd)
    finally:
        os.close(fd)


def _listed(tree: Tree, name: str, written: os.stat_result) -> Listed:
    """Return how the bucket lists a file that was just written, so that a refresh leaves it."""
    with contextlib.suppress(BucketError):
        listed = tree.bucket.info(name)
        if listed.size == written.st_size:  # otherwise somebody else has written it, too
            return listed
    return Listed(written.st_size, f"written {written.st_mtime_ns}")
