"""Files that an image takes from this computer, and values of commands on the host."""

from __future__ import annotations

import fnmatch
import io
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import HostShell


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


def send_files(connection: HostShell, folder: str, files: bytes) -> None:
    """Unpack an archive of `archive` in a folder on a host."""
    quoted = shlex.quote(folder)
    try:
        connection.run(f"mkdir -p {quoted} && tar -xzf - --no-same-owner -C {quoted}", files)
    except CommandError as error:
        raise HostError(f"files could not be sent: {error}") from None


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
