"""Sends files and folders to the nodes, and downloads them from there."""

from __future__ import annotations

import glob
import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.files.bring import Download, place_in
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_bytes, format_count, format_list, format_ranks, printable
from jupyter_sky.paths import working_folder
from jupyter_sky.serialization.folders import FolderContent, read_folder
from jupyter_sky.serialization.selected_files import IGNORE_FILE
from jupyter_sky.transport.protocol.agent_requests import FindAnswer, FoundFile

_NAMED = 3  # most files to list individually


def read_sources(
    names: Sequence[str], to: str | None, limit: float | None, force: bool
) -> list[FolderContent]:
    """Read files and folders of this computer for sending.

    A file below the working folder keeps its relative path on nodes; any other keeps its name.

    Parameters
    ----------
    names
        The typed names, perhaps with ``*``.
    to
        The target folder on the nodes.
    limit
        The most bytes that one of them may have.
    force
        Whether to replace files that are in the way on nodes.

    Raises
    ------
    UsageError
        If one of them does not exist or is too large.
    """
    contents, here = [], working_folder()
    sources: dict[PurePosixPath, Path] = {}
    for source in _sources(names):
        is_below = source.is_relative_to(here) and source != here
        place = PurePosixPath(to, source.name) if to else PurePosixPath(source.name)
        if is_below and not to:
            place = PurePosixPath(source.relative_to(here).as_posix())
        _refuse_twice(source, sources.setdefault(place, source), place)
        if source.is_dir():
            content = read_folder(source, "put", str(place), limit)
            _check_left_out(source, content)
        else:
            # Each file has a record of its own, so that files sent later do not replace it.
            mark = hashlib.sha256(source.name.encode()).hexdigest()[:12]
            content = read_folder(source, f"put-{mark}", str(place.parent), limit)
        contents.append(replace(content, folder={**content.folder, "force": force}))
    return contents


def bring(
    shell: InteractiveShell,
    cluster: Cluster,
    patterns: Sequence[str],
    ranks: Sequence[int],
    to: str | None,
    limit: float | None,
    force: bool,
) -> None:
    """Download files from the nodes of ranks, and print what has arrived.

    Parameters
    ----------
    shell
        The shell of the notebook.
    cluster
        The cluster.
    patterns
        Names of files and folders there, perhaps with ``*``.
    ranks
        The ranks; if there are several, each has its own folder here.
    to
        The target folder; by default, they keep their relative paths.
    limit
        The most bytes that they may have in total.
    force
        Whether to replace files that are newer here.

    Raises
    ------
    UsageError
        If there are none, too many, or newer ones here.
    """
    target = working_folder() / Path(to or "").expanduser()
    places: dict[int, list[Download]] = {}
    links_out: list[str] = []
    for rank in ranks:
        folder = target / f"rank{rank}" if len(ranks) > 1 else target
        found = _find(cluster, patterns, rank)
        links_out += found["links_out"]
        places[rank] = list(_downloads(cluster, found, patterns, rank, folder))
        sources: dict[Path, str] = {}
        for each in places[rank]:
            path = each.file["path"]
            _refuse_twice(path, sources.setdefault(each.path, path), each.path)
    if links_out:
        names = printable(shlex.join(dict.fromkeys(links_out)))
        print(
            f"{cluster.name}: links to folders elsewhere are not followed: `%sky get {names}` "
            "brings what is there"
        )
    if not (every := [place for each in places.values() for place in each]):
        return
    new = {rank: [p for p in each if not _is_here(p)] for rank, each in places.items()}
    coming = [place for each in new.values() for place in each]
    if not force:
        _check_newer(coming)
    size = sum(place.file["size"] for place in coming)
    if limit is not None and size > limit:
        raise UsageError(
            f"{_named(coming)} have {format_bytes(size)}: name fewer, or add `--allow-large`."
        )
    here = len(every) - len(coming)
    already = f"{format_count(here, 'file')} {'is' if here == 1 else 'are'} here already"
    if not coming:
        print(f"{cluster.name}: {already}")
        return
    what = f"{_named(coming)} ({format_bytes(size)})"
    with ProgressLine(shell, cluster.name) as line:
        came, note = 0, ""

        def show() -> None:
            share = 10 * came // max(size, 1) * 10
            why = f" ({note})" if note else ""
            line.update(f"bringing {what}" + (f": {share} %" if share else "") + why)

        def arrived(count: int) -> None:
            nonlocal came
            came += count
            show()

        def waits(text: str) -> None:
            nonlocal note
            if text != note:
                note = text
                show()

        try:
            for rank, wanted in new.items():
                cluster.files.bring(rank, wanted, arrived, waits)
        except KeyboardInterrupt:
            raise Interrupted(
                f"{what} did not come as a whole: the same line goes on where it was stopped."
            ) from None
        where = f"from {format_ranks(list(ranks))} in {line.seconds:.1f} s"
        line.update(f"brought {what} {where}{f'; {already}' if here else ''}")


def matches(name: str, pattern: str) -> bool:
    """Return whether a name from a node matches a requested pattern, as a shell reads it.

    A folder stands for all of its content. What is hidden matches only a name that begins with a
    dot: a node that was taken over must not answer ``*`` with ``.git/hooks/pre-commit``.
    """
    wanted, is_elsewhere = _parts_of(pattern)
    # In the pattern; ``**`` stands for any number of folders.
    reached = set(range(len(wanted))) if is_elsewhere else {0}
    for part in PurePosixPath(name).parts:
        for at, each in enumerate(wanted[:-1]):
            if at in reached and each == "**":
                reached.add(at + 1)
        is_hidden = part.startswith(".")
        there = {at for at in reached if wanted[at] == "**" and not is_hidden}
        reached = there | {at + 1 for at in reached if _is_part(part, wanted[at])}
        if len(wanted) in reached:
            return True
    return wanted[-1] == "**" and len(wanted) - 1 in reached


@lru_cache(maxsize=256)  # a node may have a hundred thousand files
def _parts_of(pattern: str) -> tuple[tuple[str, ...], bool]:
    """Return the parts of a pattern, and whether its place is elsewhere for the node.

    Of such a place, names have only some of the last parts.
    """
    parts = PurePosixPath(os.path.normpath(pattern)).parts
    if not pattern.startswith(("/", "~")) and parts[:1] not in ((), ("..",)):
        return parts, False
    named = parts[1:] if parts[:1] and parts[0].startswith(("/", "~")) else parts
    return tuple(each for each in named if each != "..") or ("*",), True


def _is_part(part: str, wanted: str) -> bool:
    is_shown = not part.startswith(".") or wanted.startswith(".")
    return part == wanted or (wanted != "**" and is_shown and fnmatchcase(part, wanted))


def _sources(names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        # Resolve "..", with which a file outside the folder would seem to be below it.
        full = Path(os.path.normpath(working_folder() / Path(name).expanduser()))
        if full.exists():
            yield full
            continue
        found = sorted(glob.glob(str(full), recursive=True))  # noqa: PTH207
        if not found:
            raise UsageError(f"there is no {name} here, in {working_folder()}.")
        yield from map(Path, found)


def _check_left_out(source: Path, content: FolderContent) -> None:
    """Refuse a folder of which a list of files that are left out leaves nothing else."""
    lists = {".gitignore", IGNORE_FILE}
    sent = {
        PurePosixPath(path).name for path in (*content.folder["files"], *content.folder["links"])
    }
    if sent <= lists and any(
        each.name not in lists for each in source.rglob("*") if each.is_file()
    ):
        own = IGNORE_FILE if (source / IGNORE_FILE).is_file() else ".gitignore"
        raise UsageError(
            f"nothing in {source} is sent, as {own} leaves it out: say otherwise in "
            f"a {IGNORE_FILE} in this folder, which may be empty."
        )


def _refuse_twice(one: str | Path, other: str | Path, place: PurePath) -> None:
    """Refuse to copy two files or folders to one place: one would be lost, and nobody told."""
    if one != other:
        raise UsageError(
            f"{printable(str(other))} and {printable(str(one))} would both be "
            f"{printable(str(place))}: copy them one by one, each with `--to FOLDER`."
        )


def _find(cluster: Cluster, patterns: Sequence[str], rank: int) -> FindAnswer:
    found = cluster.files.find(rank, patterns)
    host = cluster.state.node_of(rank).host
    if missing := [each for each in patterns if each in found["missing"]]:
        is_relative = any(not each.startswith(("/", "~")) for each in missing)
        where = ": names are those in the folder that ranks begin in" if is_relative else ""
        raise UsageError(
            f"there is no {format_list(missing)} on {host}, where rank {rank} is{where}."
            f"{about_variables(cluster, missing, rank)}"
        )
    if found["has_more"]:
        raise UsageError(f"these are too many files on {host}: pack them into one file there.")
    if not found["files"] and not found["links_out"]:
        raise UsageError(f"{format_list(list(patterns))} on {host} has no files.")
    return found


def about_variables(cluster: Cluster, names: Sequence[str], rank: int) -> str:
    """Return advice where names that are no files are variables of a rank; empty if not."""
    known = [name for name in names if name in cluster.sync.names_of(rank)]
    return f" Variables come home by `%%sky --out {','.join(known)}`." if known else ""


def _downloads(
    cluster: Cluster, found: FindAnswer, patterns: Sequence[str], rank: int, folder: Path
) -> Iterator[Download]:
    host = cluster.state.node_of(rank).host
    inside: set[Path] = set()
    for file in found["files"]:
        if not any(matches(file["name"], each) for each in patterns):
            raise SkyError(f"{host} has given {file['name']!r}, which was not asked for.")
        yield Download(file, place_in(folder, file["name"], inside))


def _is_here(place: Download) -> bool:
    """Return whether a file was downloaded before, and equals the one on its node."""
    try:
        status = place.path.stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (place.file["size"], place.file["changed"])


def _check_newer(places: Sequence[Download]) -> None:
    for place in places:
        shown = printable(str(place.path))
        if place.path.is_dir():
            raise UsageError(f"{shown} is a folder here, and a file there: add `--to FOLDER`.")
        for above in place.path.parents:
            if above.is_file():
                raise UsageError(
                    f"{printable(str(above))} is a file here, and a folder there: "
                    "add `--to FOLDER`."
                )
        if place.path.exists() and place.path.stat().st_mtime_ns > place.file["changed"]:
            raise UsageError(
                f"{shown} is newer than the one on the node: add `--force` to replace it, "
                "or `--to FOLDER`."
            )


def _named(places: Sequence[Download]) -> str:
    files: list[FoundFile] = [place.file for place in places]
    names = [printable(file["name"]) for file in files[:_NAMED]]
    if (more := len(files) - _NAMED) > 0:
        names.append(format_count(more, "other"))
    return format_list(names)
