"""Host key verification, by the keys, authorities and revocations of ``known_hosts``."""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.providers.ssh.connection.errors import HostKeyError
from jupyter_sky.providers.ssh.connection.ssh_config import Login

if TYPE_CHECKING:
    import paramiko


def known_key_types(login: Login) -> list[str]:
    """Return the known key types of a host, so that it is asked for one of those."""
    return list(dict.fromkeys(key.get_name() for key in _all_known(login)))


def has_authority(login: Login) -> bool:
    """Return whether ``known_hosts`` trusts an authority to certify this host."""
    return any(_authorities(login))


def check_host_key(login: Login, key: paramiko.PKey) -> None:
    """Refuse a host whose key is not in ``known_hosts``.

    As with ssh, a new host is noted there if the configuration says so; a changed key is refused in
    any case.

    Raises
    ------
    HostKeyError
        With the key's fingerprint, and the command that accepts it.
    """
    if _is_revoked(login.known_hosts, key):
        raise HostKeyError(
            f"its host key {fingerprint(key)} is marked as @revoked in known_hosts: ask its "
            f"administrator."
        )
    if key.public_blob is not None and (signed := list(_authorities(login))):
        _check_certificate(key, login.host, signed)
        return
    if any(each == key for each in _all_known(login)):
        return
    known = list(_known_keys(login, login.key_name))
    if not known and login.accepts_new:
        _note(login, key)
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
        f"{', '.join(fingerprint(each) for each in known)}. Somebody may be intercepting the "
        f"connection; if the machine was set up again, remove the old key with `!ssh-keygen -R "
        f"'{login.key_name}'`"
    )


def fingerprint(key: paramiko.PKey) -> str:
    """Return a key's fingerprint as ``ssh-keygen -l`` prints it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _check_certificate(key: paramiko.PKey, host: str, authorities: Sequence[str]) -> None:
    """Refuse a certificate that does not prove a host's identity.

    Parameters
    ----------
    key
        The host's key, with a certificate.
    host
        The host name that it should be for.
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


# Reading known_hosts


def _all_known(login: Login) -> Sequence[paramiko.PKey]:
    """Return the keys that a host may show: where none is known at its port, those without one."""
    at_port = list(_known_keys(login, login.key_name))
    return at_port or list(_known_keys(login, login.host))


def _known_keys(login: Login, name: str) -> Iterator[paramiko.PKey]:
    """Yield the known keys of a name."""
    from paramiko.hostkeys import HostKeyEntry
    from paramiko.ssh_exception import SSHException

    for line in _lines(login.known_hosts):
        patterns, _, key = line.partition(" ")
        if not patterns.startswith("@") and _names_host(name, patterns):
            # A key of an unknown kind, or a damaged one, proves nothing.
            with contextlib.suppress(SSHException, ValueError):
                if entry := HostKeyEntry.from_line(f"- {key}"):
                    yield entry.key


def _authorities(login: Login) -> Iterator[str]:
    """Yield the keys of authorities that may certify a host: type and base64."""
    lines = [line.split() for line in _lines(login.known_hosts)]
    revoked = {word for words in lines if words[0] == "@revoked" for word in words}
    for words in lines:
        match words:
            case ["@cert-authority", patterns, kind, key, *_]:
                names = login.key_name, login.host
                if key not in revoked and any(_names_host(each, patterns) for each in names):
                    yield f"{kind} {key}"


def _is_revoked(paths: Sequence[Path], key: paramiko.PKey) -> bool:
    return any(line.startswith("@revoked") and key.get_base64() in line for line in _lines(paths))


def _names_host(name: str, patterns: str) -> bool:
    """Return whether the names in a line match this one, with ssh's rules."""
    import paramiko

    name = name.lower()
    fits = False
    for pattern in patterns.split(","):
        wanted = pattern.removeprefix("!")
        if wanted.startswith("|1|"):
            found = paramiko.HostKeys.hash_host(name, wanted) == wanted
        else:
            # A bracket is literal here; in file patterns it begins a set.
            found = fnmatch.fnmatchcase(name, wanted.lower().replace("[", "[[]"))
        if found and pattern != wanted:
            return False
        fits = fits or found
    return fits


def _note(login: Login, key: paramiko.PKey) -> None:
    """Add the key of a new host to the first file, as ssh does; others may add theirs just now."""
    import paramiko

    name = login.key_name
    shown = paramiko.HostKeys.hash_host(name) if login.hashes_names else name
    for path in login.known_hosts[:1]:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{shown} {key.get_name()} {key.get_base64()}\n")


def _lines(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        with contextlib.suppress(OSError):
            for line in path.read_text(errors="replace").splitlines():
                if line.strip() and not line.startswith("#"):
                    yield " ".join(line.split())
