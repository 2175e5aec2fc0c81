"""`sky.volume`: a volume of a rank's node."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import Any

from jupyter_sky.api.instance import instance_info
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_bytes, format_list
from jupyter_sky.transport.volumes.asking import ask, find_volume


class NotUploaded(SkyError):
    """A bucket lacks files of a volume that one node alone has, which keeps them."""


class MountedVolume:
    """A volume on this node.

    Attributes
    ----------
    url, path
        The address of the data, and the path at which it is mounted.
    read_only
        Whether nothing is written back.
    """

    def __init__(self, note: dict[str, Any]) -> None:
        self.url: str = note["url"]
        self.path: str = note["path"]
        self.read_only: bool = note["read_only"]
        self._socket: str = note["socket"]

    def fetch(self, *patterns: str) -> None:
        """Fetch files before they are opened, and wait for as long as it takes.

        Parameters
        ----------
        *patterns
            Names below the volume, of files or folders, or patterns like ``"*.bin"``; all files if
            none is given.

        Raises
        ------
        UsageError
            If one leads elsewhere, or no file matches it.
        SkyError
            If a file cannot be fetched.
        """
        own = [*self._own_names(patterns).values()]
        answer = self._ask(op="fetch", path=self.path, patterns=[] if "." in own else own)
        if missing := answer["missing"]:
            raise UsageError(
                f"no file of {self.path} matches {missing[0]}: name files or folders that are "
                "there, or none to fetch everything; `refresh()` shows what is new in the bucket."
            )
        if answer["trouble"]:
            raise SkyError(f"{self.url}: {answer['trouble']}.")

    def refresh(self) -> None:
        """Show what others have written to the bucket since it was mounted or refreshed.

        Raises
        ------
        SkyError
            If it cannot be listed.
        """
        if trouble := self._ask(op="refresh", path=self.path)["trouble"]:
            raise SkyError(f"{trouble}.")

    def write_back(self, *names: str) -> None:
        """Write the files that ranks of this node wrote back to the bucket, and wait.

        Parameters
        ----------
        *names
            Names below the volume, of files or folders; everything if none is given, and what
            this node had written and was removed here is then removed from the bucket.

        Raises
        ------
        UsageError
            If one is a pattern, leads elsewhere, or is not there and there are no other ranks.
        NotUploaded
            If some files cannot be written back; they stay on the node.
        """
        own = self._own_names(names)
        missing = [name for name in names if not Path(self.path, name).exists()]
        # Other ranks that call this, too, may have it on their nodes, or write it just now.
        is_alone = (info := instance_info()) is not None and info.world_size == 1
        if wrong := [name for name in missing if is_alone or set(name) & set("*?[")]:
            raise UsageError(
                f"there is no {wrong[0]} in {self.path}: name files or folders that are there, "
                "without patterns, or none to write everything back."
            )
        if missing and len(missing) == len(names):
            warnings.warn(
                f"there is no {missing[0]} in {self.path} on this node: nothing is written back "
                "from here.",
                stacklevel=2,
            )
        self._write_back([] if "." in own.values() else list(own.values()))

    def _own_names(self, names: Collection[str]) -> dict[str, str]:
        """Return what the volume calls these files, folders or patterns."""
        own = {name: _name_in(self.path, Path(self.path, name)) for name in names}
        if outside := [name for name, within in own.items() if within is None]:
            raise UsageError(f"{outside[0]} is not in {self.path}: name files or folders in it.")
        return {name: within for name, within in own.items() if within is not None}

    def _write_back(self, names: Collection[str], gone: Collection[str] = ()) -> None:
        asked = {"path": self.path, "names": [*names], "gone": [*gone]}
        for each in self._ask(op="write_back", **asked)["volumes"]:
            if each["left"] or (names and each["trouble"]):
                left = format_list(
                    [f"{self.path}/{name}" for name in (each["left"] or [*names])[:3]]
                )
                more = " and others" if len(each["left"]) > 3 else ""
                raise NotUploaded(
                    f"not written to {self.url}: {left}{more}, on this node alone "
                    f"({each['trouble']})."
                )

    def __repr__(self) -> str:
        for each in self._ask(op="state")["volumes"]:
            if each["path"] == self.path:
                here, size = format_bytes(each["here"]), format_bytes(each["size"])
                unwritten = len(each["unwritten"])
                waiting = f", {unwritten} files to write back" if unwritten else ""
                return (
                    f"<volume {self.url} at {self.path}: {each['files']} files, {here} of {size} "
                    f"on this node{waiting}>"
                )
        return f"<volume {self.url} at {self.path}>"

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            return ask(self._socket, request)
        except OSError:
            raise SkyError(f"the volume {self.path} is gone: its cluster has ended.") from None


def write_entries_back(
    folder: str | PathLike[str], names: Collection[str], gone: Collection[str] = ()
) -> None:
    """Write what became of entries of a folder back to its bucket, if it is in a volume.

    Parameters
    ----------
    folder
        The folder, which may be reached through links.
    names
        Names of files and folders in it.
    gone
        Names of folders that were removed from it, to be removed from the bucket.

    Raises
    ------
    NotUploaded
        If some files cannot be written back; they stay on the node.
    """
    note = find_volume(folder)
    place = _name_in(note["path"], Path(folder)) if note else None
    if note and place and (names or gone):
        own = ([os.path.normpath(f"{place}/{name}") for name in each] for each in (names, gone))
        MountedVolume(note)._write_back(*own)


def is_in_volume(folder: str | PathLike[str]) -> bool:
    """Return whether a folder is in a volume of this node."""
    note = find_volume(folder)
    return note is not None and _name_in(note["path"], Path(folder)) is not None


def _name_in(volume: str, path: Path) -> str | None:
    """Return what a volume calls a path, which may contain links; ``None`` if it is elsewhere."""
    real, root = Path(os.path.realpath(path)), os.path.realpath(volume)
    return str(real.relative_to(root)) if real.is_relative_to(root) else None


def volume(path: str | PathLike[str]) -> MountedVolume:
    """Return the volume of this node that contains a path; for cells and functions on ranks.

    Parameters
    ----------
    path
        Its path, as in ``--volume s3://bucket/prefix:/data``, or a path below it.

    Raises
    ------
    UsageError
        If there is none.

    Examples
    --------
    In a cell that begins with ``%%sky``:

    >>> sky.volume("/data").fetch("large.bin")
    """
    note = find_volume(path)
    if note is None:
        raise UsageError(
            f"{path} is in no volume of this node: start the cluster with "
            f"`--volume s3://bucket/prefix:{path}`."
        )
    return MountedVolume(note)
