"""A line to a host: one SSH connection, commands over it, and bridges to agents.

Everything here blocks and is called in threads of its own; every wait is bounded.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.providers.ssh.connection import authentication, host_keys
from jupyter_sky.providers.ssh.connection.ssh_config import Login, login
from jupyter_sky.providers.ssh.connection.targets import Target, parse_one

if TYPE_CHECKING:
    import paramiko

CONNECT_WITHIN = 10.0
"""Seconds for each step of connecting: to the port, to a common cipher, to being logged in."""

ANSWER_WITHIN = 60.0
"""Seconds in which a command has to print something, unless it is known to take longer."""

_KEEP_ALIVE = 15  # seconds; firewalls and NATs forget connections that are silent
_WINDOW = 8 * 1024 * 1024
_PIECE = 256 * 1024
_TEST_WITHIN = 2.0
_NO_AGENT = 3  # what the bridge exits with when there is no agent
_MARK = b"--jupyter-sky--\n"


# What goes wrong is said by exceptions; paramiko's own words are for who asks for them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class HostError(SkyError):
    """A host cannot be used; the text does not name it."""


class CommandError(HostError):
    """A command failed on a host; the text has its last lines."""


class Line:
    """An SSH connection to a host, made when it is first needed and again when it broke.

    Attributes
    ----------
    target
        The host.
    via
        Hosts to go through, in place of those that the configuration names.
    way
        How to log in, in place of what the configuration says.
    """

    def __init__(self, target: Target, via: tuple[str, ...] = (), way: Login | None = None) -> None:
        self.target = target
        self.way = way
        self._via = via
        self._lock = threading.Lock()
        self._transport: paramiko.Transport | None = None
        self._suspect = False
        self._bridges = 0

    def connect(self) -> paramiko.Transport:
        """Return the connection, as one that works.

        Raises
        ------
        HostError
            With the reason why there is none.
        """
        with self._lock:
            if self._transport is not None and not self._works(self._transport):
                self._transport.close()
                self._transport = None
            if self._transport is None:
                way = self.way or login(self.target)
                self._transport = _connect(replace(way, jumps=self._via) if self._via else way)
            self._suspect = False
            return self._transport

    def _works(self, transport: paramiko.Transport) -> bool:
        if not transport.is_active() or not self._suspect:
            return transport.is_active()
        # It may be a broken link that nobody has noticed yet: only an answer tells.
        with contextlib.suppress(Exception):
            transport.open_session(timeout=_TEST_WITHIN).close()
            return True
        return False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._transport is not None and self._transport.is_active()

    def close(self) -> None:
        """Hang up; what goes on over the line ends with an error."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def close_if_unused(self) -> None:
        """Hang up unless an agent is reached over this line."""
        if not self._bridges:
            self.close()

    # Commands

    def run(
        self,
        script: str,
        data: bytes | None = None,
        within: float = ANSWER_WITHIN,
        sent: Callable[[int], None] = lambda count: None,
    ) -> str:
        """Run a shell script on the host and return what it prints.

        Parameters
        ----------
        script
            The script. Without ``data`` it stands in no argument list.
        data
            What it reads.
        within
            Seconds in which it has to print something, or to end.
        sent
            Told how many bytes of what it reads have left.

        Raises
        ------
        CommandError
            With its last lines, when it fails.
        HostError
            When the connection breaks.
        """
        # What login scripts print comes before the mark.
        script = f"printf %s {shlex.quote(_MARK.decode())}\n{script}"
        command = "sh -s" if data is None else f"sh -c {shlex.quote(script)}"
        try:
            with contextlib.closing(self._channel(command)) as channel:
                channel.settimeout(within)
                _write(channel, script.encode() if data is None else data, sent)
                channel.shutdown_write()
                printed = _read(channel.recv).partition(_MARK)[2]
                said = _read(channel.recv_stderr)
                status = channel.recv_exit_status()
        except TimeoutError:
            raise CommandError(f"a command said nothing for {within:.0f} s") from None
        except (OSError, EOFError) as error:
            raise HostError(f"the connection broke ({error or 'end of file'})") from None
        if status:
            lines = (printed + said).decode(errors="replace").strip().splitlines()
            raise CommandError("\n".join(lines[-12:]) or f"a command ended with status {status}")
        return printed.decode(errors="replace")

    def _channel(self, command: str) -> paramiko.Channel:
        import paramiko

        try:
            channel = self.connect().open_session(window_size=_WINDOW, timeout=CONNECT_WITHIN)
            channel.settimeout(CONNECT_WITHIN)
            channel.exec_command(command)
        except paramiko.SSHException as error:
            self._suspect = True
            raise HostError(f"it takes no more commands ({error})") from None
        return channel

    # Bridges

    def bridge(self, command: str) -> socket.socket:
        """Return a socket that leads to an agent.

        Parameters
        ----------
        command
            Runs ``jupyter_sky.node.bridge`` on the host.

        Raises
        ------
        AgentGone
            When there is no agent any more.
        HostError
            When the host cannot be reached.
        """
        channel = self._channel(command)
        try:
            self._await_agent(channel)
        except BaseException:
            channel.close()
            raise
        ours, theirs = socket.socketpair()
        for side in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                side.setsockopt(socket.SOL_SOCKET, option, 4 * 1024 * 1024)
        self._bridges += 1
        pumps = [
            threading.Thread(target=pump, args=(theirs, channel), daemon=True, name="sky-bridge")
            for pump in (_upstream, _downstream)
        ]
        threading.Thread(target=self._tend, args=(pumps, theirs, channel), daemon=True).start()
        return ours

    def _await_agent(self, channel: paramiko.Channel) -> None:
        channel.settimeout(CONNECT_WITHIN)
        seen = b""
        try:
            while not seen.endswith(_MARK):
                if not (byte := channel.recv(1)):
                    break
                seen += byte
            else:
                channel.settimeout(None)
                return
            status = channel.recv_exit_status()
            said = _read(channel.recv_stderr).decode(errors="replace").strip()
        except (TimeoutError, OSError):
            self._suspect = True
            raise HostError("its agent did not answer") from None
        if status == _NO_AGENT:
            raise AgentGone(said)
        raise HostError(f"the bridge to its agent did not start: {said or status}")

    def _tend(
        self, pumps: list[threading.Thread], theirs: socket.socket, channel: paramiko.Channel
    ) -> None:
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        theirs.close()
        self._bridges -= 1
        self._suspect = True


def _write(channel: paramiko.Channel, data: bytes, sent: Callable[[int], None]) -> None:
    for start in range(0, len(data), _PIECE):
        channel.sendall(memoryview(data)[start : start + _PIECE])
        sent(min(start + _PIECE, len(data)))


def _upstream(sock: socket.socket, channel: paramiko.Channel) -> None:
    # Pieces, and no copies of what is left of them: `sendall` of much at once is quadratic.
    buffer = memoryview(bytearray(_PIECE))
    with contextlib.suppress(OSError, EOFError):
        while count := sock.recv_into(buffer):
            channel.sendall(buffer[:count])
    # The other pump may wait for a host that is never heard of again.
    with contextlib.suppress(OSError, EOFError):
        channel.close()


def _downstream(sock: socket.socket, channel: paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(_PIECE):
            sock.sendall(data)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _read(receive: Callable[[int], bytes]) -> bytes:
    parts = []
    while part := receive(_PIECE):
        parts.append(part)
    return b"".join(parts)


# Connecting


def _connect(way: Login) -> paramiko.Transport:
    import paramiko

    sock = _reach(way)
    transport = None
    try:
        transport = paramiko.Transport(sock)
        transport.banner_timeout = transport.auth_timeout = CONNECT_WITHIN
        options = transport.get_security_options()
        # With the others paramiko compares a code of each packet byte by byte, in Python.
        options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)
        if types := _wanted_types(host_keys.known_types(way), options.key_types):
            options.key_types = types
        if host_keys.has_authority(way):
            certified = [f"{kind}-cert-v01@openssh.com" for kind in options.key_types]
            options.key_types = [*certified, *options.key_types]
        transport.start_client(timeout=CONNECT_WITHIN)
        host_keys.check(way, transport.get_remote_server_key())
        authentication.authenticate(transport, way)
        transport.set_keepalive(_KEEP_ALIVE)
        return transport
    except BaseException as error:
        if transport is not None:
            transport.close()
        with contextlib.suppress(OSError):
            sock.close()
        if isinstance(error, paramiko.SSHException | EOFError | OSError):
            raise HostError(
                f"{way.address} port {way.port} does not speak SSH as expected ({error})"
            ) from None
        raise


def _reach(way: Login) -> Any:
    """Return what leads to the SSH server: a socket, a channel of another line, or a command."""
    import paramiko

    where = f"{way.address} port {way.port}"
    if way.proxy_command:
        return paramiko.ProxyCommand(way.proxy_command)
    if way.jumps:
        *before, last = way.jumps
        jump = lines.get(parse_one(last), tuple(before))
        try:
            return jump.connect().open_channel(
                "direct-tcpip", (way.address, way.port), ("127.0.0.1", 0), timeout=CONNECT_WITHIN
            )
        except paramiko.SSHException as error:
            raise HostError(f"{last} does not lead to {where} ({error})") from None
        except SkyError as error:
            raise HostError(f"{last}, which leads to it, cannot be used: {error}") from None
    try:
        sock = socket.create_connection((way.address, way.port), CONNECT_WITHIN)
    except TimeoutError:
        raise HostError(
            f"{where} did not answer within {CONNECT_WITHIN:.0f} s: is the machine on, and are you "
            "in its network?"
        ) from None
    except socket.gaierror:
        raise HostError(
            f"no machine is named {way.address}: name it in ~/.ssh/config, or type its address"
        ) from None
    except ConnectionRefusedError:
        raise HostError(f"nothing listens at {where}: is its SSH server running?") from None
    except OSError as error:
        raise HostError(f"{where} cannot be reached ({error.strerror or error})") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _wanted_types(known: list[str], usual: tuple[str, ...]) -> list[str]:
    """Put the types of key that are known of a host first; of RSA, the signatures of today."""
    first = [kind for name in known for kind in usual if kind == name or _is_rsa(kind, name)]
    return [*first, *(kind for kind in usual if kind not in first)] if first else []


def _is_rsa(kind: str, name: str) -> bool:
    return name == "ssh-rsa" and kind.startswith("rsa-sha2-")


class _Lines:
    """All lines of this process: hosts behind one jump host share the line to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, tuple[str, ...]], Line] = {}

    def get(self, target: Target, via: tuple[str, ...] = ()) -> Line:
        """Return the line to a host; ``via`` as in `Line`."""
        with self._lock:
            return self._lines.setdefault((str(target), via), Line(target, via))

    def put(self, target: Target, way: Login) -> Line:
        """Return the line to a host that is logged in to in this way from now on."""
        place = str(target), ()
        with self._lock:
            there = self._lines.get(place)
            if there is None or there.way != way:
                if there is not None:
                    there.close()
                there = self._lines[place] = Line(target, way=way)
            return there


lines = _Lines()
