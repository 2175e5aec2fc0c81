"""Data in buckets and shared folders, as paths on every node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import PurePosixPath

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import without_secrets

_OBSTORE, _HUB = ("obstore>=0.8", "fsspec>=2024.6"), ("huggingface-hub>=0.24", "fsspec>=2024.6")
_PACKAGES = {
    "s3": _OBSTORE,
    "gs": _OBSTORE,
    "hf": _HUB,
    "file": ("fsspec>=2024.6",),
}
"""What the nodes need for each kind of address."""

_MODULES = {"huggingface-hub": "huggingface_hub"}
_EXAMPLE = "s3://bucket/prefix:/data"


@dataclass(frozen=True)
class Volume:
    """Data in a bucket or a shared folder, at a path on every node.

    Parameters
    ----------
    url
        Its address: ``"s3://bucket/prefix"``, ``"gs://…"``, ``"hf://datasets/user/name"``, or
        ``"file:///shared/folder"`` for one that all nodes see.
    path
        Its path for ranks, like ``"/data"`` or ``"~/data"``.
    read_only
        Whether nothing is written back.
    limit
        Bytes of each node's disk that fetched files may take up; by default, half of the free
        space.

    Raises
    ------
    UsageError
        If an argument is invalid.

    Examples
    --------
    >>> volume = sky.Volume("s3://bucket/photos", "/data", read_only=True)
    >>> with sky.ComputePool(nodes=2, volumes=[volume]) as pool: ...
    """

    url: str
    path: str
    read_only: bool = False
    limit: float | None = None

    def __post_init__(self) -> None:
        scheme, mark, place = str(self.url).partition("://")
        if not mark:
            raise UsageError(f'"{self.url}" is no address: type one like {_EXAMPLE}.')
        if scheme not in _PACKAGES:
            known = ", ".join(f"{each}://" for each in _PACKAGES)
            raise UsageError(f"{scheme}:// is not known: volumes are of {known}.")
        if "@" in place.partition("/")[0] and scheme != "hf":
            raise UsageError(f"{without_secrets(self.url)}: leave out the name and password.")
        if not place.strip("/"):
            raise UsageError(f"{self.url} names no bucket: type one like {_EXAMPLE}.")
        path = str(self.path)
        if not path.startswith(("/", "~/")) or ".." in PurePosixPath(path).parts:
            raise UsageError(
                f"{path} is no whole path: a volume is at one like /data or ~/data, as in "
                f"--volume {self.url}:/data."
            )
        if path.strip("~/") == "":
            raise UsageError(f"{path} is not empty on any node: name a folder below it.")
        if self.limit is not None and not self.limit > 0:
            raise UsageError(f"limit={self.limit!r} is no size: type bytes, like limit=50e9.")
        object.__setattr__(self, "url", str(self.url).rstrip("/") or self.url)
        object.__setattr__(self, "path", path.rstrip("/"))

    @classmethod
    def parse(cls, text: str) -> Volume:
        """Parse a volume, typed as ``s3://bucket/prefix:/data[:ro]``.

        Raises
        ------
        UsageError
            If it is not a volume.
        """
        match = re.fullmatch(r"([\w+.-]+://[^:]*(?::\d+[^:]*)?):([^:]+?)(:ro|:rw)?", text)
        if match is None:
            raise UsageError(
                f"{without_secrets(text)} is no volume: type where the data is and where it goes "
                f"on the nodes, as in --volume {_EXAMPLE} or {_EXAMPLE}:ro."
            )
        return cls(match[1], match[2], match[3] == ":ro")

    def __str__(self) -> str:
        return f"{self.url}:{self.path}{':ro' if self.read_only else ''}"

    @property
    def scheme(self) -> str:
        """The part before ``://``."""
        return self.url.partition("://")[0]

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that nodes need for it, in pip's syntax."""
        return _PACKAGES[self.scheme]


def check_volumes(volumes: object) -> tuple[Volume, ...]:
    """Return volumes from the user's arguments.

    Raises
    ------
    UsageError
        If something is not a volume, or two have the same path.
    """
    if isinstance(volumes, str | Volume) or not isinstance(volumes, Sequence):
        raise UsageError(f'volumes is a list: type volumes=["{_EXAMPLE}"].')
    found = [each if isinstance(each, Volume) else Volume.parse(str(each)) for each in volumes]
    paths: dict[PurePosixPath, Volume] = {}
    for each in found:
        path = PurePosixPath(each.path)
        for other, there in paths.items():
            if path == other or other in path.parents or path in other.parents:
                where = f"at {path}" if path == other else f"at {other} and {path}"
                raise UsageError(
                    f"{there.url} and {each.url} are both {where}: give each a path of its own."
                )
        paths[path] = each
    return tuple(found)


def packages_for(volumes: Iterable[Volume]) -> tuple[str, ...]:
    """Return the packages that nodes need for volumes, in pip's syntax."""
    return tuple(dict.fromkeys(package for each in volumes for package in each.packages))


def check_here(volumes: Iterable[Volume]) -> None:
    """Refuse volumes for nodes with the notebook's environment if that lacks a driver.

    Raises
    ------
    UsageError
        If a package is missing.
    """
    for each in volumes:
        names = [re.split("[<>=]", package)[0] for package in each.packages]
        lacking = [name for name in names if find_spec(_MODULES.get(name, name)) is None]
        if lacking:
            raise UsageError(
                f"{each.scheme}:// needs {' and '.join(lacking)}, which this environment, that "
                f"local nodes share, does not have: `%pip install {' '.join(lacking)}`."
            )
