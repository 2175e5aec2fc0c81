"""Where our files are on the user's machine."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from jupyter_sky.errors import SkyError

_OURS = re.compile(r"registry\.sqlite(-journal)?|asked|run|aws|slurm|uv-.*")
"""The files that may be in the registry's folder."""

_LONGEST_SOCKET = 100  # bytes; the system's limit is 104 to 108


def home() -> Path:
    """Return the folder of the registry; ``JUPYTER_SKY_HOME`` overrides the usual place."""
    if chosen := os.environ.get("JUPYTER_SKY_HOME"):
        return _private(Path(chosen))
    # Imported here since nodes, which only use `of_the_user`, do not have this package.
    from platformdirs import user_data_path

    return _private(user_data_path("jupyter-sky"))


def working_folder() -> Path:
    """Return the folder that the notebook works in.

    Raises
    ------
    SkyError
        If it was removed, or replaced by another of the same name.
    """
    return Path(working_directory())


def working_directory() -> str:
    """Return it as a string: each run asks for it, and a `Path` costs ten times as much.

    Raises
    ------
    SkyError
        As `working_folder`.
    """
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise SkyError(
            "the notebook's working folder no longer exists: change to one that does with `%cd`."
        ) from None


def runtime() -> Path:
    """Return the folder for sockets and logs: on a local disk, private, with a short path."""
    chosen = os.environ.get("JUPYTER_SKY_HOME")
    if chosen and len(chosen) < _LONGEST_SOCKET - 32:
        return _private(home() / "run")
    return of_the_user()


def of_the_user() -> Path:
    """Return the folder shared by all of the user's registries; it is temporary and private."""
    user = os.getuid() if hasattr(os, "getuid") else "me"
    temporary = tempfile.gettempdir()
    short = temporary if len(temporary) < _LONGEST_SOCKET - 48 else "/tmp"
    return _private(_own(Path(short) / f"jupyter-sky-{user}"))


def command_path(env: Mapping[str, str]) -> str:
    """Return the ``PATH`` of variables, with the programs of this process's environment first."""
    own = str(Path(sys.executable).parent)
    others = env.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([own, *(entry for entry in others if entry != own)])


def private_opener(path: str, flags: int) -> int:
    """Open a file that only the user can read, if it is made; for `open`."""
    return os.open(path, flags, 0o600)


def replace_text(path: Path, text: str) -> None:
    """Write a file in place of the one before: at any moment, readers find all of one of them.

    Only the user can read it.
    """
    with _written(path, text) as new:
        new.replace(path)


def text_made_once(path: Path, text: str) -> str:
    """Return what is in a file; if there is none, make one with a text: the first one stays.

    At any moment, readers find all of it, or none.
    """
    if not path.exists():
        with _written(path, text) as new:
            try:
                path.hardlink_to(new)
            except FileExistsError:
                pass
            except OSError:  # a disk without hard links
                new.replace(path)
    return path.read_text(encoding="utf-8")


@contextlib.contextmanager
def _written(path: Path, text: str) -> Iterator[Path]:
    """Write a text into a file beside another, which goes when it is not needed any more."""
    # Threads write the same file, too.
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(new, "w", encoding="utf-8", opener=private_opener) as file:
            file.write(text)
        yield new
    finally:
        new.unlink(missing_ok=True)


def _own(folder: Path) -> Path:
    """Return a folder, or one with a suffix if another user already owns one of that name."""
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
    """Return a folder, made private to this user unless it may hold files of other programs."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if not hasattr(os, "getuid"):
            return folder
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise SkyError(
                f"{folder} belongs to or can be changed by somebody else: "
                "set JUPYTER_SKY_HOME to a folder of yours."
            )
        if status.st_mode & 0o055:
            # Other files in it may be meant for other users.
            if not all(_OURS.fullmatch(path.name) for path in folder.iterdir()):
                raise SkyError(
                    f"others can read {folder}: type `chmod 700 {folder}`, "
                    "or set JUPYTER_SKY_HOME to a folder of its own."
                )
            folder.chmod(0o700)
    except OSError as error:
        raise SkyError(
            f"{folder} cannot be used, {error.strerror}: set JUPYTER_SKY_HOME to a folder of yours."
        ) from None
    return folder
