"""Certificates of the user's keys: which of the files that there are belongs to which key."""

from __future__ import annotations

import base64
import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.providers.ssh.connection.ssh_config import Login

if TYPE_CHECKING:
    import paramiko

_CERTIFICATE = b"-cert-v01@openssh.com"


def certified(key: paramiko.PKey, login: Login, path: Path | None) -> Iterator[paramiko.PKey]:
    """Yield a key with each of its certificates.

    Parameters
    ----------
    path
        The file of the key, if there is one: a certificate may be beside it.
    """
    from paramiko.pkey import PublicBlob

    beside = [Path(f"{path}-cert.pub")] if path else []
    for each in (*beside, *login.certificates):
        # They are often valid for some hours only: there may be a new one by now.
        with contextlib.suppress(OSError, ValueError):
            signed = PublicBlob.from_file(str(each))
            if without_certificate(signed.key_blob) == key.asbytes():
                shown = copy.copy(key)
                shown.public_blob = signed
                yield shown


def without_certificate(blob: bytes) -> bytes:
    """Return the public key that a certificate is for; other keys unchanged."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import ssh

    kind = blob[4 : 4 + int.from_bytes(blob[:4], "big")]
    if not kind.endswith(_CERTIFICATE):
        return blob
    with contextlib.suppress(ValueError, UnsupportedAlgorithm):
        found = serialization.load_ssh_public_identity(kind + b" " + base64.b64encode(blob))
        if isinstance(found, ssh.SSHCertificate):
            line = found.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
            return base64.b64decode(line.split()[1])
    return blob
