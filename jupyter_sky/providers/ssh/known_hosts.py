"""Is the machine that answers the one that the person means? What ``known_hosts`` says."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.ssh.config import Login

if TYPE_CHECKING:
    import paramiko


class HostKeyError(SkyError):
    """The key of a host is not known, or not the known one."""


def known_types(login: Login) -> list[str]:
    """Return the types of key that are known of a host, so that it is asked for one of those."""
    return list(dict.fromkeys(key.get_name() for key in _known(login)))


def check(login: Login, key: paramiko.PKey) -> None:
    """Refuse a host whose key is not in ``known_hosts``.

    Raises
    ------
    HostKeyError
        With the key's fingerprint, and what accepts it.
    """
    if _is_revoked(login.known_hosts, key):
        raise HostKeyError(
            f"its host key {fingerprint(key)} is marked as @revoked in known_hosts: "
            "ask whoever runs the machine."
        )
    known = list(_known(login))
    if any(each == key for each in known):
        return
    shown = f"{key.get_name()} {fingerprint(key)}"
    if not known:
        raise HostKeyError(
            f"its host key is not known; it shows {shown}: if that is the machine's key, accept it "
            f"with `!echo '{login.key_name} {key.get_name()} {key.get_base64()}' >> "
            f"{login.known_hosts[0] if login.known_hosts else '~/.ssh/known_hosts'}`"
        )
    raise HostKeyError(
        f"its host key has changed: it shows {shown}, and known_hosts has "
        f"{', '.join(fingerprint(each) for each in known)}. Somebody may be in between; if the "
        f"machine was set up anew, forget the old key with `!ssh-keygen -R '{login.key_name}'`"
    )


def fingerprint(key: paramiko.PKey) -> str:
    """Return a key's fingerprint as ``ssh-keygen -l`` prints it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _known(login: Login) -> Iterator[paramiko.PKey]:
    import paramiko

    for path in login.known_hosts:
        keys = paramiko.HostKeys()
        try:
            keys.load(str(path))
        except OSError:
            continue
        if found := keys.lookup(login.key_name):
            yield from found.values()


def _is_revoked(paths: Sequence[Path], key: paramiko.PKey) -> bool:
    for path in paths:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        if any(line.startswith("@revoked") and key.get_base64() in line for line in lines):
            return True
    return False
