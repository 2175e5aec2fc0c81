"""Copies files from a node, in parts, into a folder of this computer.

The node is not trusted: no name that it gives leads out of the folder, nothing is written through a
symbolic link, and a file never grows beyond the size that the node has announced. A file is written
beside its place, and renamed when it is complete. After a broken link or a Stop, a transfer goes on
where it ended if the file on the node is unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import glob
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import cast

from jupyter_sky.cluster.network import incoming
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.pending import LOOK_LINK_WITHIN, malformed
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import printable, shortened
from jupyter_sky.transport.blobs.sent_folders import mode_of_new, short_name
from jupyter_sky.transport.protocol.agent_requests import FindAnswer, FoundFile
from jupyter_sky.transport.tasks import cancel_all

PART = 512 * 1024
"""Bytes of a part: what else is sent meanwhile, as Stop is, does not wait long."""

MOST = 100_000
"""Files that are brought at once."""

_AT_ONCE = 16  # requests; the node sends no faster than the link takes it
_MOST_IN_ONE = 256  # small files
_LONGEST_SHOWN = 200  # characters of a name


@dataclass(frozen=True)
class Download:
    """A file of a node, and where it is to be here."""

    file: FoundFile
    path: Path


async def find(
    connection: Connection,
    patterns: Sequence[str],
    within: float | None = None,
    link_within: float | None = LOOK_LINK_WITHIN,
) -> FindAnswer:
    """Ask a node which files patterns stand for; the limits are as of `Connection.request`.

    Raises
    ------
    SkyError
        When its answer cannot be read.
    """
    answer = await connection.request(
        "find", within=within, link_within=link_within, patterns=list(patterns), most=MOST
    )
    if len(answer["files"]) > MOST:
        raise malformed(connection.name, "find")
    return cast(FindAnswer, answer)


def place_in(folder: Path, name: str, inside: set[Path] | None = None) -> Path:
    """Return where a file of this name is to be in a folder of this computer.

    Parameters
    ----------
    folder
        The folder.
    name
        The name, as a node has given it.
    inside
        Folders of which is known that they do not lead out of it; others are added.

    Raises
    ------
    SkyError
        When the name, which a node has given, leads out of the folder.
    """
    parts = PurePosixPath(name).parts
    place = folder.joinpath(*parts)
    is_name = bool(parts) and "\0" not in name and not any(each in ("..", "/") for each in parts)
    windows = any("\\" in each or ":" in each for each in parts) and os.name == "nt"
    said = repr(shortened(name, _LONGEST_SHOWN))
    refused = SkyError(f"a node has given {said} as the name of a file, which is none.")
    if not is_name or windows or not place.is_relative_to(folder):
        raise refused
    inside = set() if inside is None else inside
    shown = printable(str(place))
    try:
        leads_out = place.parent not in inside and not Path(
            os.path.realpath(place.parent)
        ).is_relative_to(os.path.realpath(folder))
        is_link = leads_out or _is_link(place)
    except ValueError:  # as of what no name of a file is made of
        raise refused from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise refused from None
        raise SkyError(f"{shown} cannot be written: {error.strerror}.") from None
    if is_link:
        raise SkyError(f"{shown} is a link, or is behind one: nothing is written through it.")
    inside.add(place.parent)
    return place


def _is_link(place: Path) -> bool:
    """Return whether there is a link; where that cannot be known, `Path.is_symlink` may say no."""
    try:
        return stat.S_ISLNK(place.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


async def bring(
    connection: Connection, places: Sequence[Download], arrived: Callable[[int], object]
) -> None:
    """Bring files; ``arrived`` is told how many bytes have come, also those of former tries.

    Raises
    ------
    SkyError
        When one of them is gone, or there is no room.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(batch: Sequence[Download]) -> None:
        async with turns:
            try:
                await _bring_batch(connection, batch, arrived)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise SkyError(
                    f"no room is left in {batch[0].path.parent} on this computer: free some, and "
                    "the same line goes on where it was stopped."
                ) from None

    tasks = [asyncio.ensure_future(in_turn(batch)) for batch in _batches(places)]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await cancel_all(tasks)
        raise


def _batches(places: Sequence[Download]) -> Iterator[list[Download]]:
    """Yield files that are asked for together: several small ones, or a large one."""
    batch: list[Download] = []
    size = 0
    for place in places:
        if batch and (size + place.file["size"] > PART or len(batch) >= _MOST_IN_ONE):
            yield batch
            batch, size = [], 0
        batch.append(place)
        size += place.file["size"]
    if batch:
        yield batch


async def _bring_batch(
    connection: Connection, batch: Sequence[Download], arrived: Callable[[int], object]
) -> None:
    for folder in {place.path.parent for place in batch}:
        folder.mkdir(parents=True, exist_ok=True)
    if len(batch) == 1:
        await _bring_large(connection, batch[0], arrived)
        return
    parts = [(each.file["path"], 0, each.file["size"]) for each in batch]
    read = await _read(connection, parts)

    def write() -> None:
        for place, data in zip(batch, read, strict=True):
            part = _part(place)
            part.unlink(missing_ok=True)
            with open(part, "wb", opener=_opener(place.file)) as target:
                target.write(_whole(connection, place, data, place.file["size"]))
            _finish(place, part)

    # In a thread: files of a folder take long to make, and links have to be served meanwhile.
    await asyncio.to_thread(write)
    arrived(sum(place.file["size"] for place in batch))


async def _bring_large(
    connection: Connection, place: Download, arrived: Callable[[int], object]
) -> None:
    file, part = place.file, _part(place)
    with open(part, "ab", opener=_opener(file)) as target:
        offset = target.tell()
        if offset > file["size"]:
            target.truncate(offset := 0)
        arrived(offset)
        asked: list[tuple[int, asyncio.Task[list[memoryview | None]]]] = []
        try:
            next_offset = offset
            while offset < file["size"]:
                while next_offset < file["size"] and len(asked) < _AT_ONCE:
                    count = min(PART, file["size"] - next_offset)
                    request = _read(connection, [(file["path"], next_offset, count)])
                    asked.append((count, asyncio.ensure_future(request)))
                    next_offset += count
                count, task = asked.pop(0)
                [data] = await task
                await asyncio.to_thread(target.write, _whole(connection, place, data, count))
                offset += count
                arrived(count)
        finally:
            await cancel_all(task for _, task in asked)
    if file["size"] > PART:
        await _check_is_one(connection, place)
    _finish(place, part)


async def _check_is_one(connection: Connection, place: Download) -> None:
    """Refuse a file whose parts may be of several versions.

    One that has grown, as a log, begins as it did.

    Raises
    ------
    SkyError
        When it was written anew meanwhile.
    """
    file, part = place.file, _part(place)
    answer = await find(connection, [glob.escape(file["path"])], link_within=None)
    now = next((each for each in answer["files"] if each["path"] == file["path"]), None)
    if now and now["changed"] == file["changed"]:
        return
    if now and now["size"] > file["size"]:
        [begin] = await _read(connection, [(file["path"], 0, PART)])
        with part.open("rb") as here:
            if begin is not None and bytes(begin) == here.read(PART):
                return
    part.unlink(missing_ok=True)
    raise _is_another(connection, place)


async def _read(
    connection: Connection, parts: Sequence[tuple[str, int, int]]
) -> list[memoryview | None]:
    answer = await connection.request("read", parts=parts, within=None, link_within=None)
    data = incoming.read_parts(answer)
    if data is None or len(data) != len(parts):
        raise SkyError(f"{connection.name} sends of its files what cannot be read.")
    return data


def _whole(
    connection: Connection, place: Download, data: memoryview | None, size: int
) -> memoryview:
    if data is None or len(data) != size:
        raise _is_another(connection, place)
    return data


def _is_another(connection: Connection, place: Download) -> SkyError:
    return SkyError(
        f"{printable(place.file['name'])} was removed or changed on {connection.name} while it was "
        "brought: bring it again when nothing writes it."
    )


def _part(place: Download) -> Path:
    """Return where a file is until all of it has come; another version of it has another name."""
    version = f"{place.file['changed']:x}-{place.file['size']:x}"
    return place.path.with_name(f".{short_name(place.path.name)}.{version}.sky-part")


def _opener(file: FoundFile) -> Callable[[str, int], int]:
    """Return what opens a file that is not complete: for those who may read it on the node."""
    # Where others can write into the folder, a link may have been put there.
    flags = getattr(os, "O_NOFOLLOW", 0)
    return lambda path, asked: os.open(path, asked | flags, mode_of_new(file["mode"]))


def _finish(place: Download, part: Path) -> None:
    with contextlib.suppress(OSError, OverflowError, ValueError):
        os.utime(part, ns=(place.file["changed"], place.file["changed"]))
    part.replace(place.path)
