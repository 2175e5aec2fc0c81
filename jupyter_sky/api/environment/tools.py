"""uv on this computer: exports lock files, and builds wheels of local folders."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jupyter_sky.api.environment import wheel_folders
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import without_secrets

_WITHIN = 600.0  # seconds; a build may compile

_NOT_BUILT = "error: Failed to build"  # with what the build has said above it

_State = frozenset[tuple[str, int, int]]

_built: dict[Path, tuple[_State, Path]] = {}
"""The wheel of each folder, and the state that its build has left the folder in."""


def export(project: Path) -> str:
    """Return the packages of a project's ``uv.lock``, as lines of a requirements file.

    Raises
    ------
    UsageError
        If uv cannot read it.
    """
    words = ["--frozen", "--no-dev", "--no-hashes", "--no-header", "--no-annotate"]
    return _uv(["export", *words, "--no-emit-project"], project, f"{project / 'uv.lock'}")


def build(folder: Path) -> Path:
    """Build the wheel of a local folder, unless it is as the last build has left it.

    Raises
    ------
    UsageError
        If there is no such folder, or it cannot be built.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder} to take along: correct its name.")
    state, former = _built.get(folder, (None, folder))
    if former.is_file() and state == _state(folder):
        wheel_folders.note_use(former)
        return former
    # The former wheel stays: nodes that join a cluster are sent what the others have.
    place = Path(tempfile.mkdtemp(dir=wheel_folders.parent()))
    try:
        _uv(["build", "--wheel", "--out-dir", str(place), str(folder)], folder, f"{folder}")
        [wheel] = place.glob("*.whl")
    except BaseException:  # also if the user stops it
        shutil.rmtree(place, ignore_errors=True)
        raise
    _built[folder] = _state(folder), wheel
    return wheel


def _state(folder: Path) -> _State:
    """Return the files of a folder, with what changes when they are written."""
    found = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                found.add((str(path), status.st_size, status.st_mtime_ns))
    return frozenset(found)


def is_python_package(name: str) -> bool:
    """Return whether a Python package of this name is installed here."""
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _uv(words: Sequence[str], folder: Path, what: str) -> str:
    program = _program()
    if program is None:
        raise UsageError(f"{what} is read by uv: run `%pip install uv` first.")
    try:
        done = subprocess.run(
            [program, *words], cwd=folder, capture_output=True, text=True, timeout=_WITHIN
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"uv has not done with {what} within {_WITHIN:.0f} s.") from None
    if done.returncode:
        said = ": ".join(_reasons(done.stderr)) or "it says nothing of why"
        raise UsageError(f"uv cannot use {what}: {without_secrets(said).rstrip('.')}.")
    return done.stdout


def _reasons(said: str) -> list[str]:
    """Return what uv says of why it has failed: its first and last line, or those of a build."""
    lines = [each.rstrip() for each in said.splitlines() if each.strip()]
    built = next((n for n, line in enumerate(lines) if line.startswith(_NOT_BUILT)), 0)
    # A compiler says more than that its command has failed; a traceback's lines are indented.
    of_build = [
        line
        for line in lines[:built]
        if re.search(r"error: ", line, re.IGNORECASE)
        and not line.startswith((" ", "error: Command "))
    ]
    lines = of_build or lines
    ends = [each.strip().removeprefix("error: ").rstrip(".") for each in (*lines[:1], *lines[-1:])]
    return list(dict.fromkeys(ends))


def _program() -> str | None:
    """Return the path of uv on this computer."""
    with contextlib.suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return str(find_uv_bin())
    return shutil.which("uv")
