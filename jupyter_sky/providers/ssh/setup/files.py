"""Files that an image takes from this computer, and values of commands on the host."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import shlex
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes, format_list
from jupyter_sky.providers.scaling import RunningCluster
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import HostShell
from jupyter_sky.serialization.folders import HUGE

_NOTE = ".sky-sent-files"
"""The file in the working folder that says which cluster its files were sent for."""


@dataclass(frozen=True)
class SentFiles:
    """The files of an image, for the hosts of a cluster.

    Attributes
    ----------
    content
        An archive of `archive`.
    identity
        The id of the cluster.
    is_running
        Whether it has nodes already, whose ranks may have changed what the hosts share with them.
    """

    content: bytes
    identity: str
    is_running: bool

    @classmethod
    def for_cluster(cls, cluster: RunningCluster) -> SentFiles:
        """Read what a cluster needs; this takes as long as compressing it."""
        image = cluster.spec.image
        content = archive(image.includes, image.excludes)
        return cls(content, cluster.identity, bool(cluster.machines))

    def are_wanted(self, connection: HostShell, folder: str) -> bool:
        """Return whether there are some to send to a folder on a host.

        A folder that the cluster has used before, as in a home that its hosts share, stays as it
        is. What another cluster of the same name has left there is replaced.
        """
        if not self.content or not self.is_running:
            return bool(self.content)
        note = shlex.quote(f"{folder}/{_NOTE}")
        return connection.run(f"cat {note} 2>/dev/null || true").strip() != self.identity

    def send(self, connection: HostShell, folder: str) -> None:
        """Unpack them in a folder on a host.

        Raises
        ------
        HostError
            If that fails.
        """
        quoted = shlex.quote(folder)
        unpack = f"mkdir -p {quoted} && tar -xzf - --no-same-owner -C {quoted}"
        try:
            connection.run(unpack, self.content)
        except CommandError as error:
            raise HostError(f"files could not be sent: {error}") from None

    def keep(self, connection: HostShell, folder: str) -> None:
        """Note that they are in a folder on a host, which from now on stays as it is.

        Raises
        ------
        HostError
            If that fails.
        """
        note = shlex.quote(f"{folder}/{_NOTE}")
        connection.run(f"echo {shlex.quote(self.identity)} >{note}")


def check_files(image: Image) -> None:
    """Refuse files that do not exist, cannot be read, or are too large to be sent at the start.

    Raises
    ------
    UsageError
        With the first of them.
    """
    for name in image.includes:
        path = Path(name).expanduser()
        with _reading(path):
            exists = path.exists()
        if not exists:
            raise UsageError(f"includes has {name!r}, which does not exist: correct or remove it.")
    size = 0
    for path, _ in _selected(image.includes, image.excludes):
        with _reading(path):
            status = path.lstat()
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    if size > HUGE:
        raise UsageError(
            f"{format_list(list(image.includes))}: that is {format_bytes(size)}, and at most "
            f"{format_bytes(HUGE)} are included at the start: put large data into a bucket for "
            "`--volume`, or send it with `%sky put --allow-large` when the nodes are up."
        )


def archive(includes: Sequence[str], excludes: Sequence[str]) -> bytes:
    """Return files and folders as a compressed tar archive, empty if there are none.

    Each is stored under its own name.

    Parameters
    ----------
    includes
        Files and folders.
    excludes
        Patterns of names, or of paths below them, to leave out.

    Raises
    ------
    UsageError
        If one of them cannot be read.
    """

    if not includes:
        return b""

    def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        return entry

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as tar:
        for path, name in _selected(includes, excludes):
            with _reading(path):
                tar.add(path, name, recursive=False, filter=without_owner)
    return stream.getvalue()


def _selected(includes: Sequence[str], excludes: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield files and folders, and what is in them, each with its name in the archive."""
    for each in includes:
        path = Path(each).expanduser().resolve()
        yield from _below(path, path.name, excludes)


def _below(path: Path, name: str, excludes: Sequence[str]) -> Iterator[tuple[Path, str]]:
    parts = name.split("/")
    below = ["/".join(parts[start:]) for start in range(len(parts))]
    if any(fnmatch.fnmatch(each, p.rstrip("/")) for each in below for p in excludes):
        return
    yield path, name
    if path.is_dir() and not path.is_symlink():
        with _reading(path):
            there = sorted(path.iterdir())
        for inner in there:
            yield from _below(inner, f"{name}/{inner.name}", excludes)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror or error}): make it readable, or leave it "
            "out of what is included."
        ) from None


def shell_values(connection: HostShell, commands: Mapping[str, str]) -> dict[str, str]:
    """Return the output of shell commands on a host, without the final newline, by name."""
    found = {}
    for name, command in commands.items():
        try:
            printed = connection.run(f"( {command}\n)", ends_with_us=True)
            found[name] = printed.rstrip("\n")
        except CommandError as error:
            raise HostError(f"`{command}`, for the variable {name}, failed: {error}") from None
    return found
