"""Opening an SSH connection: reaching the port, negotiation, the host's key, the login."""

from __future__ import annotations

import contextlib
import errno
import math
import random
import re
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_sky.providers.ssh.connection import host_keys
from jupyter_sky.providers.ssh.connection.errors import HostError, TurnedAway
from jupyter_sky.providers.ssh.connection.proxy_command import ProxyCommand
from jupyter_sky.providers.ssh.connection.ssh_config import Login

if TYPE_CHECKING:
    import paramiko

    from jupyter_sky.providers.ssh.connection.transport import Transport

MOST_BEFORE = 1024 * 1024
"""Bytes that a server may send before it is known who it is; greeting and keys are much less."""

AUTHENTICATE_WITHIN = 60.0
"""Seconds in which a server has to say whether it accepts a key.

It may ask a directory service that is slow, and the key may wait for the user's touch.
"""

GIVEN_UP_AFTER = 30.0
"""Seconds without a word of a server that was asked for one, after which it is taken for gone."""

_KEEP_ALIVE = 5  # seconds; firewalls and NATs forget silent connections, too

_LONGEST_MOMENT = 1.0  # seconds

_PAUSES = (0.5, 1.0, 2.0)
"""Seconds before the next attempts to log in to a server that has too many logins at this moment.

By default, it turns some away from the tenth on: of hosts behind it, that many come at once.
"""

_NEEDED = {
    "kex": ("way to exchange keys", "KexAlgorithms", "curve25519-sha256@libssh.org"),
    "cipher": ("cipher", "Ciphers", "aes256-ctr"),
    "mac": ("code for authentication", "MACs", "hmac-sha2-256"),
    "host key": ("kind of host key", "HostKeyAlgorithms", "ssh-ed25519"),
}
"""What paramiko and a server have to have in common, by its words; the option; one that it has."""

_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

_MOST_SAID = 200
_TURNED_AWAY = re.compile("Exceeded MaxStartups|Not allowed at this time|kex_exchange_identif")
"""What sshd says in place of its greeting, and ssh where it was not greeted."""


def patiently(connect: Callable[[], Transport], is_stopped: Callable[[], bool]) -> Transport:
    """Connect to a server; again after a while if it has too many logins at this moment.

    Parameters
    ----------
    connect
        Makes a connection.
    is_stopped
        Whether there should be no further attempt.
    """
    for pause in _PAUSES:
        try:
            return connect()
        except TurnedAway:
            # Those who were turned away together do not come back together.
            time.sleep(pause * random.uniform(0.5, 1.5))
            if is_stopped():
                raise HostError("it was stopped") from None
    return connect()


def open_socket(
    login: Login, begun: Callable[[socket.socket], object] = lambda sock: None
) -> socket.socket | ProxyCommand:
    """Return a connection to the SSH server: by TCP, or the input and output of a command.

    Parameters
    ----------
    login
        How to log in.
    begun
        Called with each socket before it waits for an answer: another thread can shut it down.

    Raises
    ------
    HostError
        If the port cannot be reached.
    """
    if login.proxy_command:
        return ProxyCommand(login.proxy_command, login.proxy_name, login.proxy_advice)
    where = login.where
    try:
        sock = _connected(login, begun)
    except TimeoutError:
        raise HostError(
            f"{where} did not answer within {login.connect_within:.0f} s: is the machine on, and "
            "are you in its network?"
        ) from None
    except (socket.gaierror, UnicodeError) as error:  # one of a part that is empty or too long
        if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
            raise HostError(
                f"nobody says at this time which address {login.address} has: is this computer in "
                "a network, and in that of the machine?"
            ) from None
        if login.family in _FAMILIES:
            raise HostError(
                f"{login.address} has no address of the kind {login.family}, which AddressFamily "
                "in ~/.ssh/config asks for"
            ) from None
        raise HostError(
            f"no host is named {login.address}: add it to ~/.ssh/config, or type its address"
        ) from None
    except ConnectionRefusedError:
        raise HostError(f"nothing listens at {where}: is its SSH server running?") from None
    except OSError as error:
        raise HostError(f"{where} cannot be reached ({error.strerror or error})") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _connected(login: Login, begun: Callable[[socket.socket], object]) -> socket.socket:
    """Return a connection to the first address of a host that answers."""
    family = _FAMILIES.get(login.family, socket.AF_UNSPEC)
    error: OSError | None = None
    found = socket.getaddrinfo(login.address, login.port, family, socket.SOCK_STREAM)
    for kind, stream, protocol, _, place in found:
        sock = socket.socket(kind, stream, protocol)
        begun(sock)
        try:
            sock.settimeout(login.connect_within)
            if login.source:
                _bind(sock, login.source)
            sock.connect(place)
        except OSError as failed:
            sock.close()
            error = failed
        else:
            return sock
    raise error or OSError("it has no address")


def _bind(sock: socket.socket, source: str) -> None:
    try:
        sock.bind((source, 0))
    except OSError:  # or it is one of the other kind, and the next address is not
        raise OSError(f"from {source}, which BindAddress in ~/.ssh/config names") from None


def open_transport(
    login: Login,
    sock: socket.socket | ProxyCommand | paramiko.Channel,
    meet: Callable[[Server], object],
) -> Transport:
    """Speak SSH over a connection to a server, check the server's identity, and log in.

    Parameters
    ----------
    meet
        Called with the server, before anything is said.

    Raises
    ------
    HostError
        If the server does not speak SSH as expected.
    HostKeyError
        If it may be another machine.
    LoginError
        If it rejects the user's login.
    """
    import paramiko

    from jupyter_sky.providers.ssh.connection.keys import authentication
    from jupyter_sky.providers.ssh.connection.transport import Transport

    transport = None
    server = Server(sock)
    meet(server)
    try:
        transport = Transport(server)
        transport.banner_timeout = login.connect_within
        transport.auth_timeout = max(AUTHENTICATE_WITHIN, login.connect_within)
        options = transport.get_security_options()
        # With other MACs, paramiko compares the code of each packet byte by byte, in Python.
        options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)
        if types := _wanted_types(host_keys.known_key_types(login), options.key_types):
            options.key_types = types
        if host_keys.has_authority(login):
            certified = [f"{kind}-cert-v01@openssh.com" for kind in options.key_types]
            options.key_types = [*certified, *options.key_types]
        transport.start_client(timeout=login.connect_within)
        if not transport.initial_kex_done:
            raise TimeoutError
        host_keys.check_host_key(login, transport.get_remote_server_key())
        server.is_known = True
        authentication.authenticate(transport, login)
        transport.keep_alive(_KEEP_ALIVE)
        server.give_up_after(GIVEN_UP_AFTER)
        return transport
    except BaseException as error:
        if transport is not None:
            transport.close()
        with contextlib.suppress(OSError):
            sock.close()
        if isinstance(error, paramiko.SSHException | EOFError | OSError):
            trouble = f"{login.where} {server.trouble(error)}"
            is_full = server.has_turned_away
            if isinstance(sock, ProxyCommand) and not (server.said and is_full):
                trouble = sock.trouble(login.connect_within) or trouble
                is_full = _TURNED_AWAY.search(trouble) is not None
            raise (TurnedAway if is_full else HostError)(trouble) from None
        raise


class Server:
    """A connection to a server that is limited in data while its identity is unknown, and in time.

    paramiko would buffer an endless banner, or a packet of any size, until memory is full. Later it
    would wait for ever, or for as long as TCP does, for a machine that has lost its power.

    Attributes
    ----------
    is_known
        Whether the server has proved its identity.
    said
        The beginning of what it has said.
    heard
        When anything came from it last, by the monotonic clock.
    is_gone
        Whether it was given up because it said nothing for too long.
    """

    def __init__(self, sock: socket.socket | ProxyCommand | paramiko.Channel) -> None:
        self.is_known = False
        self.heard = time.monotonic()
        self.is_gone = False
        self._sock = sock
        self._given_up_after = math.inf
        self._unheard, self._waited_at = 0.0, self.heard
        self._left = MOST_BEFORE
        self.said = ""
        self._has_ended = False

    @property
    def silent_for(self) -> float:
        """Seconds since anything came from it."""
        return time.monotonic() - self.heard

    def give_up_after(self, seconds: float) -> None:
        """Take it for gone from now on when it has said nothing for so long."""
        self._given_up_after = seconds

    def recv(self, count: int) -> bytes:
        """Receive bytes, as a socket does."""
        try:
            data: bytes = self._sock.recv(count)
        except TimeoutError:  # paramiko tries again, ten times a second
            self._wait()
            raise
        except ConnectionError:  # it has closed with our greeting unread, which resets
            self._has_ended = True
            raise
        self._has_ended = not data
        self.said += data[: _MOST_SAID - len(self.said)].decode(errors="replace")
        self.heard = time.monotonic()
        self._unheard = 0.0
        if not self.is_known:
            self._left -= len(data)
            if self._left < 0:
                raise EOFError("it sends too much")
        return data

    def send(self, data: bytes) -> int:
        """Send bytes, as a socket does."""
        try:
            sent: int = self._sock.send(data)
        except TimeoutError:
            self._wait()
            raise
        except ConnectionError:  # it may have said why before it closed
            with contextlib.suppress(OSError, EOFError):
                while self.recv(_MOST_SAID):
                    pass
            raise
        return sent

    def _wait(self) -> None:
        """Count a moment in which nothing came, or could be sent.

        Not what the clock says: a kernel that was stopped for a while has not listened meanwhile.
        """
        now = time.monotonic()
        self._unheard += min(now - self._waited_at, _LONGEST_MOMENT)
        self._waited_at = now
        if self._unheard > self._given_up_after:
            self.is_gone = True
            raise ConnectionAbortedError(errno.ECONNABORTED, "it said nothing for too long")

    @property
    def has_turned_away(self) -> bool:
        """Whether it has closed the connection in place of a greeting, which may change soon."""
        is_reason = not self.said or _TURNED_AWAY.match(self.said) is not None
        return self._has_ended and is_reason

    def trouble(self, error: BaseException) -> str:
        """Say what the server does in place of SSH."""
        if self.said and self.has_turned_away:
            return (
                f"lets nobody in at this moment ({self.said.strip()}): try again in a while, or "
                "have MaxStartups in its sshd_config raised"
            )
        for word, (what, option, example) in _NEEDED.items():
            if f"no acceptable {word}" in str(error):
                return (
                    f"and this computer have no {what} in common: add {example} to {option} in its "
                    "sshd_config"
                )
        if self._left < MOST_BEFORE and not isinstance(error, TimeoutError):
            return f"does not speak SSH as expected ({error})"
        if self._has_ended:
            return (
                "closed the connection without a word: it may have too many logins at this moment, "
                "or not let in your address"
            )
        return (
            "accepted the connection, and then did not answer: its SSH server hangs, or the "
            "machine is overloaded"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _wanted_types(known: list[str], usual: tuple[str, ...]) -> list[str]:
    """Put the host's known key types first; for RSA, the modern signatures."""
    first = [kind for name in known for kind in usual if kind == name or _is_rsa(kind, name)]
    return [*first, *(kind for kind in usual if kind not in first)] if first else []


def _is_rsa(kind: str, name: str) -> bool:
    return name == "ssh-rsa" and kind.startswith("rsa-sha2-")
