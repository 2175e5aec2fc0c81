"""Public-key authentication: keys of ssh-agent and of files, certificates, passphrases."""

from __future__ import annotations

import base64
import contextlib
import getpass
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.providers.ssh.connection.errors import LoginError
from jupyter_sky.providers.ssh.connection.ssh_config import Login
from jupyter_sky.transport import event_loop

if TYPE_CHECKING:
    import paramiko

_TRIES = 3

_unlocked: dict[Path, paramiko.PKey] = {}
_asking = threading.Lock()


def authenticate(transport: paramiko.Transport, login: Login) -> None:
    """Log in with the first key that the host accepts.

    Raises
    ------
    LoginError
        If it accepts none of them.
    """
    import paramiko

    tried = 0
    for key in _candidates(login):
        tried += 1
        try:
            transport.auth_publickey(login.user, key)
        except paramiko.BadAuthenticationType as error:
            raise LoginError(
                f"it accepts {' or '.join(error.allowed_types)} only for {login.user}, and "
                f"jupyter_sky needs a key: ask its administrator"
            ) from None
        except paramiko.AuthenticationException:
            if not transport.is_active():
                raise LoginError(
                    f"it hung up after {tried} keys: name the right one in ~/.ssh/config with "
                    "IdentityFile and `IdentitiesOnly yes`"
                ) from None
            continue
        if transport.is_authenticated():
            return
        raise LoginError(f"it wants more than a key of {login.user}, which is not supported")
    what = f"it accepts none of {tried} keys" if tried else "there is no key to offer"
    raise LoginError(
        f"{what} for {login.user}: run `ssh-copy-id -p {login.port} {login.user}@{login.address}` "
        "in a terminal, or name the key in ~/.ssh/config"
    )


def _candidates(login: Login) -> Iterator[paramiko.PKey]:
    """Yield keys: those of ssh-agent first, those that need a passphrase last."""
    wanted = {blob for path in login.identity_files if (blob := _public_blob(path))}
    agent = _agent_keys(login)
    held = {key.asbytes() for key in agent}
    agent.sort(key=lambda key: key.asbytes() not in wanted)
    yield from (key for key in agent if not login.only_these or key.asbytes() in wanted)
    later = []
    for path in login.identity_files:
        if path not in _unlocked and _is_encrypted(path):
            if _public_blob(path) not in held:
                later.append(path)
        elif key := _load(path, None, login):
            yield key
    for path in later:
        if key := _unlock(path, login):
            yield key


def _agent_keys(login: Login) -> list[paramiko.PKey]:
    import paramiko

    if not login.use_agent:
        return []
    with contextlib.suppress(paramiko.SSHException, OSError):
        return list(paramiko.Agent().get_keys())
    return []


def _load(path: Path, passphrase: bytes | None, login: Login) -> paramiko.PKey | None:
    import paramiko

    key = _unlocked.get(path)
    if key is None:
        try:
            key = paramiko.PKey.from_path(path, passphrase)
        except (paramiko.SSHException, paramiko.UnknownKeyType, ValueError, TypeError, OSError):
            return None
    if passphrase:
        _unlocked[path] = key
    # Certificates are often valid for only some hours: there may be a new one by now.
    for certificate in (Path(f"{path}-cert.pub"), *login.certificates):
        if certificate.exists():
            with contextlib.suppress(ValueError, OSError, paramiko.SSHException):
                key.load_certificate(str(certificate))
    return key


def _unlock(path: Path, login: Login) -> paramiko.PKey | None:
    """Ask for a key's passphrase; other hosts that need the key wait for the answer."""
    with _asking:
        for attempt in range(_TRIES):
            if path in _unlocked:
                return _load(path, None, login)
            again = "Wrong passphrase. " if attempt else ""
            try:
                said = event_loop.call_in_waiting_thread(
                    getpass.getpass, f"{again}Passphrase for {path}: "
                )
            except (event_loop.NoWaitingThread, EOFError, NotImplementedError):
                return None
            if not said:
                return None
            _load(path, said.encode(), login)
        return _load(path, None, login) if path in _unlocked else None


def _is_encrypted(path: Path) -> bool:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return False
    if "OPENSSH PRIVATE KEY" not in text:
        return "ENCRYPTED" in text
    body = "".join(line for line in text.splitlines() if not line.startswith("-----"))
    with contextlib.suppress(ValueError):
        head = base64.b64decode(body)[:64]
        # The magic word is followed by the name of the cipher, preceded by its length.
        return not head[15:].startswith(b"\0\0\0\x04none")
    return False


def _public_blob(path: Path) -> bytes | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return base64.b64decode(Path(f"{path}.pub").read_text().split()[1])
    return None
