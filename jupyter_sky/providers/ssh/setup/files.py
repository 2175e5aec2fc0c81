"""Files that an image takes from this computer, and values of commands on the host."""

from __future__ import annotations

import fnmatch
import io
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.scaling import RunningCluster
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import HostShell

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
    """Refuse files that do not exist.

    Raises
    ------
    UsageError
        With the first of them.
    """
    for name in image.includes:
        if not Path(name).expanduser().exists():
            raise UsageError(f"includes has {name!r}, which does not exist: correct or remove it.")


def archive(includes: Sequence[str], excludes: Sequence[str]) -> bytes:
    """Return files and folders as a compressed tar archive, empty if there are none.

    Each is stored under its own name.

    Parameters
    ----------
    includes
        Files and folders.
    excludes
        Patterns of names, or of paths below them, to leave out.
    """

    if not includes:
        return b""

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(entry.name).parts
        below = ["/".join(parts[start:]) for start in range(len(parts))]
        out = any(fnmatch.fnmatch(path, p.rstrip("/")) for path in below for p in excludes)
        entry.uid = entry.gid = 0
        return None if out else entry

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as tar:
        for name in includes:
            path = Path(name).expanduser().resolve()
            tar.add(path, path.name, filter=wanted)
    return stream.getvalue()


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
