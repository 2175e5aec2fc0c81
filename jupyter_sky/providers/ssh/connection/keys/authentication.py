"""Logging in: with keys of ssh-agent and of files, certificates, and what a host asks besides."""

from __future__ import annotations

import base64
import contextlib
import getpass
import shlex
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.providers.ssh.connection.errors import HostError, LoginError
from jupyter_sky.providers.ssh.connection.keys import questions, ssh_agent
from jupyter_sky.providers.ssh.connection.keys.certificates import certified, without_certificate
from jupyter_sky.providers.ssh.connection.ssh_config import Login
from jupyter_sky.transport import event_loop

if TYPE_CHECKING:
    import paramiko

_TRIES = 3
_OF_SECURITY_KEYS = (b"sk-ssh-ed25519@openssh.com", b"sk-ecdsa-sha2-nistp256@openssh.com")

_unlocked: dict[Path, paramiko.PKey] = {}
# How often the user was asked to unlock a key, and did not.
_given_up: Counter[Path] = Counter()
_asking = threading.Lock()


def authenticate(transport: paramiko.Transport, login: Login) -> None:
    """Log in with the first key that the host accepts, and what it asks the user.

    Raises
    ------
    LoginError
        If it lets nobody in by that.
    HostError
        If it does not say whether it does.
    """
    offered = _offer_keys(transport, login)
    if not offered.is_let_in and not questions.answer(transport, login, offered.allowed):
        raise LoginError(offered.trouble(login))


@dataclass(frozen=True)
class _Offered:
    """What came of keys that a host was shown.

    Attributes
    ----------
    is_let_in
        Whether one of them was enough.
    tried
        How many there were.
    allowed
        The methods that the host allows in place of keys, or beside the one that it has accepted;
        ``None`` if it has not said.
    is_one_of_several
        Whether it has accepted one, and wants something more.
    refused
        The keys with which ssh-agent did not sign.
    of_security_keys
        The files that only say which security key to ask, as ssh-agent does.
    locked
        The files whose passphrase is missing.
    """

    is_let_in: bool
    tried: int
    allowed: tuple[str, ...] | None = None
    is_one_of_several: bool = False
    refused: tuple[str, ...] = ()
    of_security_keys: tuple[Path, ...] = ()
    locked: tuple[Path, ...] = ()

    def trouble(self, login: Login) -> str:
        """Return why the host does not let the user in, and what to do."""
        if self.allowed is not None:
            wants = " or ".join(self.allowed)
            also = " besides a key" if self.is_one_of_several else ""
            return (
                f"it asks {login.user} for {wants}{also}, and nobody can answer at this moment: "
                "`%sky doctor --hosts HOST` asks you for it"
            )
        files = shlex.join(map(str, self.locked))
        if self.locked and not (self.refused or self.of_security_keys):
            others = f"it accepts none of {self.tried} others, and " if self.tried else ""
            keys = "the key" if len(self.locked) == 1 else "the keys"
            return (
                f"{others}{keys} {files} stayed locked (wrong or no passphrase): run this again to "
                f"be asked once more, or `ssh-add {files}` in a terminal"
            )
        what = f"it accepts none of {self.tried} keys" if self.tried else "there is no key to offer"
        if self.refused:
            what += f" (ssh-agent did not sign with {' and '.join(self.refused)})"
        if self.locked:
            what += f" ({files} stayed locked)"
        add = ""
        if self.of_security_keys:
            files = shlex.join(map(str, self.of_security_keys))
            add = f"`ssh-add {files}`, as security keys work only through ssh-agent, or "
        return (
            f"{what} for {login.user}: run {add}`ssh-copy-id -p {login.port} "
            f"{login.user}@{login.address}` in a terminal, or name the key in ~/.ssh/config"
        )


def _offer_keys(transport: paramiko.Transport, login: Login) -> _Offered:
    import paramiko

    tried: set[bytes] = set()
    of_security_keys: list[Path] = []
    locked: list[Path] = []
    with contextlib.closing(ssh_agent.opened(login)) as agent:
        for key in _candidates(login, agent, of_security_keys, locked):
            tried.add(key.asbytes())
            try:
                allowed = transport.auth_publickey(login.user, key)
            except paramiko.BadAuthenticationType as error:
                return _Offered(False, len(tried), tuple(error.allowed_types))
            except paramiko.AuthenticationException as error:
                if not transport.is_active():
                    raise LoginError(
                        f"it hung up after {len(tried)} keys: name the right one in ~/.ssh/config "
                        "with IdentityFile and `IdentitiesOnly yes`"
                    ) from None
                if questions.TIMED_OUT in str(error):
                    raise HostError(
                        f"{login.where} did not answer within {transport.auth_timeout:.0f} s "
                        f"whether {login.user} may log in: is it overloaded, or does a key wait "
                        "to be touched?"
                    ) from None
                continue
            if transport.is_authenticated():
                return _Offered(True, len(tried))
            return _Offered(False, len(tried), tuple(allowed), is_one_of_several=True)
        return _Offered(
            False,
            len(tried),
            refused=tuple(agent.refused),
            of_security_keys=tuple(of_security_keys),
            locked=tuple(locked),
        )


def _candidates(
    login: Login, agent: ssh_agent.SSHAgent, of_security_keys: list[Path], locked: list[Path]
) -> Iterator[paramiko.PKey]:
    """Yield keys: those of ssh-agent first, those that need a passphrase last.

    Each is preceded by its certificates: these are accepted by more hosts, but for some hours only.
    Files whose keys ssh-agent would have to ask a security key for are added to a list instead, and
    those that stay locked to another one.
    """
    wanted = {blob: path for path in login.identity_files if (blob := _public_blob(path))}
    held = agent.keys()
    held.sort(key=lambda key: without_certificate(key.asbytes()) not in wanted)
    for key in held:
        blob = without_certificate(key.asbytes())
        if blob in wanted or not login.only_these:
            yield from certified(key, login, wanted.get(blob))
            yield key
    offered = {key.asbytes() for key in held}
    later = []
    for path in login.identity_files:
        content = _openssh_content(path)
        if any(kind in content for kind in _OF_SECURITY_KEYS):
            if not any(blob in content for blob in offered):  # its public part is in clear
                of_security_keys.append(path)
        elif path not in _unlocked and _is_encrypted(path):
            if _public_blob(path) not in offered:
                later.append(path)
        elif key := _load(path, None):
            yield from certified(key, login, path)
            yield key
    for path in later:
        if key := _unlock(path):
            yield from certified(key, login, path)
            yield key
        else:
            locked.append(path)


def _load(path: Path, passphrase: bytes | None) -> paramiko.PKey | None:
    import paramiko
    from cryptography.exceptions import UnsupportedAlgorithm

    unusable = (UnsupportedAlgorithm, paramiko.SSHException, paramiko.UnknownKeyType)
    key = _unlocked.get(path)
    if key is None:
        try:
            key = paramiko.PKey.from_path(path, passphrase)
        except (*unusable, ValueError, TypeError, OSError):
            return None
        key.public_blob = None  # the certificate that was beside it
    if passphrase:
        _unlocked[path] = key
    return key


def _unlock(path: Path) -> paramiko.PKey | None:
    """Ask for a key's passphrase, or take what came of it for a host that has just asked."""
    before = _given_up[path]
    with _asking:
        if path not in _unlocked:
            if _given_up[path] != before:
                return None
            if not _ask_for_passphrase(path):
                _given_up[path] += 1
        return _load(path, None) if path in _unlocked else None


def _ask_for_passphrase(path: Path) -> bool:
    """Unlock a key by what the user types; return whether that was right."""
    for attempt in range(_TRIES):
        again = "Wrong passphrase. " if attempt else ""
        try:
            said = event_loop.call_in_waiting_thread(
                getpass.getpass, f"{again}Passphrase for {path}: "
            )
        except (event_loop.NoWaitingThread, EOFError, NotImplementedError):
            return False
        if not said:
            return False
        if _load(path, said.encode()):
            return True
    return False


def _is_encrypted(path: Path) -> bool:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return False
    if "OPENSSH PRIVATE KEY" not in text:
        return "ENCRYPTED" in text
    content = _openssh_content(path)
    # The magic word is followed by the name of the cipher, preceded by its length.
    return bool(content) and not content[15:].startswith(b"\0\0\0\x04none")


def _openssh_content(path: Path) -> bytes:
    """Return what a private key in OpenSSH's format has, its kind in clear; empty for others."""
    with contextlib.suppress(OSError, ValueError):
        text = path.read_text(errors="replace")
        if "OPENSSH PRIVATE KEY" in text:
            lines = (line for line in text.splitlines() if not line.startswith("-----"))
            return base64.b64decode("".join(lines))
    return b""


def _public_blob(path: Path) -> bytes | None:
    """Return the public key of a file: of one beside it, or of itself, as ssh does."""
    for each in (Path(f"{path}.pub"), path):
        with contextlib.suppress(OSError, ValueError, IndexError):
            kind, encoded = each.read_text(errors="replace").split()[:2]
            blob = base64.b64decode(encoded, validate=True)
            if kind.encode() in blob[:64]:
                return blob
    return None
