"""Certificates of hosts: a key that ``known_hosts`` trusts says that a host's key is its own."""

from __future__ import annotations

import base64
import fnmatch
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jupyter_sky.errors import SkyError

if TYPE_CHECKING:
    import paramiko


class HostKeyError(SkyError):
    """The key of a host is not known, or not the known one."""


def check(key: paramiko.PKey, host: str, authorities: Sequence[str]) -> None:
    """Refuse a certificate that does not prove a host.

    Parameters
    ----------
    key
        What the host shows, with a certificate.
    host
        The name that it should be for.
    authorities
        The keys that may sign it, as in ``known_hosts``: type and base64.

    Raises
    ------
    HostKeyError
        With what is wrong with it.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import ssh

    blob = key.public_blob
    assert blob is not None
    try:
        shown = blob.key_type.encode() + b" " + base64.b64encode(blob.key_blob)
        certificate = serialization.load_ssh_public_identity(shown)
        assert isinstance(certificate, ssh.SSHCertificate)
        certificate.verify_cert_signature()
    except (ValueError, InvalidSignature) as error:
        raise HostKeyError(f"its host certificate cannot be used ({error or 'forged'})") from None
    signer = certificate.signature_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    names = [name.decode(errors="replace") for name in certificate.valid_principals]
    now = time.time()
    if signer.decode() not in authorities:
        trouble = "is signed by nobody whom known_hosts trusts for it with @cert-authority"
    elif certificate.type is not ssh.SSHCertificateType.HOST:
        trouble = "is one of a user"
    elif not any(fnmatch.fnmatchcase(host.lower(), name.lower()) for name in names):
        trouble = f"is for {', '.join(names) or 'no host'} and not for {host}"
    elif not certificate.valid_after <= now < certificate.valid_before:
        trouble = "is not valid at this time: has it expired, and is the clock right?"
    elif certificate.critical_options:
        options = b", ".join(certificate.critical_options).decode(errors="replace")
        trouble = f"has conditions that are not known here ({options})"
    else:
        return
    raise HostKeyError(f"its host certificate {trouble}")
