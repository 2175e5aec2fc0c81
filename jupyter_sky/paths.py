"""Where files of ours lie on the user's machine."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from platformdirs import user_data_path

from jupyter_sky.errors import SkyError

_LONGEST_SOCKET = 100  # bytes; the system's limit is 104 to 108


def home() -> Path:
    """Return the folder of the registry; ``JUPYTER_SKY_HOME`` overrides the usual place."""
    chosen = os.environ.get("JUPYTER_SKY_HOME")
    return _private(Path(chosen) if chosen else user_data_path("jupyter-sky"))


def runtime() -> Path:
    """Return the folder of sockets and logs: on a local disk, with a short path, for us only."""
    chosen = os.environ.get("JUPYTER_SKY_HOME")
    if chosen and len(chosen) < _LONGEST_SOCKET - 32:
        return _private(home() / "run")
    user = os.getuid() if hasattr(os, "getuid") else "me"
    temporary = tempfile.gettempdir()
    short = temporary if len(temporary) < _LONGEST_SOCKET - 48 else "/tmp"
    return _private(_own(Path(short) / f"jupyter-sky-{user}"))


def _own(folder: Path) -> Path:
    """Return a folder, or one like it where another user has made one of its name first."""
    if not hasattr(os, "getuid"):
        return folder
    for each in (folder, *sorted(folder.parent.glob(f"{folder.name}.*"))):
        try:
            status = each.lstat()
        except FileNotFoundError:
            return each
        if status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode):
            return each
    return Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))


def _private(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise SkyError(
            f"{folder} cannot be used, {error.strerror}: set JUPYTER_SKY_HOME to a folder of yours."
        ) from None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise SkyError(
            f"{folder} belongs to or can be changed by somebody else: "
            "set JUPYTER_SKY_HOME to a folder of yours."
        )
    return folder
