"""Sends the code of jupyter_sky to hosts, from the package installed here."""

from __future__ import annotations

import functools
import io
import json
import shlex
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import blake3

import jupyter_sky
from jupyter_sky.providers.node_defaults import NEEDED
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import HostShell
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
        missing = json.loads(connection.run(command))
    except CommandError as error:
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
    words = {"folder": shlex.quote(folder), "parent": shlex.quote(f"{facts.cache_folder}/code")}
    if connection.run(
        "touch -c {folder}; test -d {folder} && echo there || true".format(**words)
    ).strip():
        return folder
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
        sent.archive,
    )
    return folder


@dataclass(frozen=True)
class CodePackage:
    """An archive of our code, and the digest of its content."""

    digest: str
    archive: bytes = field(repr=False)


@functools.cache
def code_package() -> CodePackage:
    """Return our package as a compressed tar archive."""
    root = Path(jupyter_sky.__file__).parent
    hasher = blake3.blake3()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=6) as archive:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root.parent)
            if not path.is_file() or _LEFT_OUT & set(name.parts):
                continue
            content = path.read_bytes()
            hasher.update(f"{name.as_posix()}\0{len(content)}\0".encode() + content)
            entry = tarfile.TarInfo(name.as_posix())
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return CodePackage(hasher.hexdigest()[:32], stream.getvalue())


_PYTHON = """
import importlib.util as u, json, sys
print(json.dumps([name for name in sys.argv[1:] if u.find_spec(name) is None]))
"""
