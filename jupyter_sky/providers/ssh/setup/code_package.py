"""Sends the code of jupyter_sky to hosts, from the package installed here."""

from __future__ import annotations

import functools
import io
import platform
import shlex
import tarfile
import threading
from pathlib import Path

import blake3

import jupyter_sky
from jupyter_sky.providers.node_defaults import NEEDED
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import HostShell, read_answer
from jupyter_sky.providers.ssh.setup.facts import HostFacts

_LEFT_OUT = {"__pycache__", "static"}


def check_python(connection: HostShell, python: str) -> None:
    """Refuse an interpreter that lacks packages that our code on nodes imports.

    Raises
    ------
    HostError
        With the missing packages.
    """
    command = shlex.join([python, "-P", "-c", _PYTHON, *NEEDED])
    try:
        missing = read_answer(connection.run(command))
    except CommandError as error:
        if "Unknown option: -P" in str(error):
            raise HostError(
                f"{python} is older than Python 3.11: name one with the notebook's version, which "
                f"is {platform.python_version()}, or leave out python=, so that an environment is "
                "made"
            ) from None
        raise HostError(f"{python} cannot be used as Python: {error}") from None
    if missing:
        raise HostError(
            f"{python} has no {', '.join(missing)}: install `jupyter-sky` there, or leave out "
            "python=, so that an environment is made"
        )


def send_code(connection: HostShell, facts: HostFacts) -> str:
    """Send our package unless it is there, and return the folder to import it from."""
    sent = code_package()
    folder = f"{facts.cache_folder}/code/{sent.digest}"
    if facts.has_code:
        return folder
    words = {"folder": shlex.quote(folder), "parent": shlex.quote(f"{facts.cache_folder}/code")}
    # Written to a temporary folder and renamed: a folder of that name is always complete.
    connection.run(
        """
        set -e; umask 077
        mkdir -p {parent}
        new=$(mktemp -d {parent}/new.XXXXXX)
        tar -xzf - -C "$new"
        mv -T "$new" {folder} 2>/dev/null || rm -rf "$new"
        test -d {folder}
        """.format(**words),
        sent.archive(),
    )
    return folder


class CodePackage:
    """Our code, as of when it was read.

    Attributes
    ----------
    digest
        Of its content.
    """

    def __init__(self, root: Path) -> None:
        self._contents: dict[str, bytes] = {}
        hasher = blake3.blake3()
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root.parent)
            if _LEFT_OUT.isdisjoint(name.parts) and path.is_file():
                content = self._contents[name.as_posix()] = path.read_bytes()
                hasher.update(f"{name.as_posix()}\0{len(content)}\0".encode() + content)
        self.digest = hasher.hexdigest()[:32]
        self._lock = threading.Lock()
        self._archive = b""

    def archive(self) -> bytes:
        """Return it as a compressed tar archive, which most hosts do not need: they have it."""
        with self._lock:  # several hosts ask at a time
            if not self._archive:
                stream = io.BytesIO()
                with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=6) as archive:
                    for name, content in self._contents.items():
                        entry = tarfile.TarInfo(name)
                        entry.size = len(content)
                        archive.addfile(entry, io.BytesIO(content))
                self._archive = stream.getvalue()
            return self._archive


_reading = threading.Lock()


def code_package() -> CodePackage:
    """Return our package, which is read once."""
    with _reading:  # several hosts ask at a time, and each would read it
        return _read_code()


@functools.cache
def _read_code() -> CodePackage:
    return CodePackage(Path(jupyter_sky.__file__).parent)


_PYTHON = """
import importlib.util as u, json, sys
print(json.dumps([name for name in sys.argv[1:] if u.find_spec(name) is None]))
"""
