"""An SSH connection to a host: commands over it, and bridges to agents.

Everything here blocks and is called in threads of its own; every wait is bounded.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.providers.ssh.connection.channel_socket import PIECE, as_socket
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.handshake import open_socket, open_transport
from jupyter_sky.providers.ssh.connection.ssh_config import CONNECT_WITHIN, Login, read_login
from jupyter_sky.providers.ssh.connection.targets import Target, parse_one
from jupyter_sky.transport.protocol.bridge import MARK, NO_AGENT

if TYPE_CHECKING:
    import paramiko

ANSWER_WITHIN = 60.0
"""Seconds in which a command has to print something, unless it is known to take longer."""

_WINDOW = 8 * 1024 * 1024
_TEST_WITHIN = 2.0

# Exceptions say what goes wrong; paramiko's own log is for those who configure it.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class ConnectionPool:
    """The SSH connections of this process: hosts behind one jump host share that to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[tuple[str, tuple[str, ...]], SSHConnection] = {}

    def get(self, target: Target, via: tuple[str, ...] = ()) -> SSHConnection:
        """Return the connection to a host; ``via`` as in `SSHConnection`."""
        with self._lock:
            new = SSHConnection(target, via)
            return self._connections.setdefault((str(target), via), new)

    def set_login(self, target: Target, login: Login) -> SSHConnection:
        """Return the connection to a host, which is logged in to in this way from now on."""
        key = str(target), ()
        with self._lock:
            there = self._connections.get(key)
            if there is None or there.login != login:
                if there is not None:
                    there.close()
                there = self._connections[key] = SSHConnection(target, login=login)
            return there


pool = ConnectionPool()


class SSHConnection:
    """An SSH connection to a host, made when it is first needed and again when it broke.

    Attributes
    ----------
    target
        The host.
    via
        Hosts to go through, in place of those that the configuration names.
    login
        How to log in, in place of what the configuration says.
    """

    def __init__(
        self, target: Target, via: tuple[str, ...] = (), login: Login | None = None
    ) -> None:
        self.target = target
        self.login = login
        self._via = via
        self._lock = threading.Lock()
        self._transport: paramiko.Transport | None = None
        self._suspect = False
        self._bridges: set[paramiko.Channel] = set()
        self._commands: set[object] = set()

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
                login = self.login or read_login(self.target)
                self._transport = self._open(
                    replace(login, jumps=self._via) if self._via else login
                )
            self._suspect = False
            return self._transport

    def close(self) -> None:
        """Hang up; what goes on over the connection ends with an error."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def close_if_unused(self) -> None:
        """Hang up unless an agent is reached over this connection, or a command runs."""
        if not self._commands:
            self.abort()

    def abort(self) -> None:
        """Hang up, and end the commands that run, unless an agent is reached over it."""
        if not self._bridges:
            self.close()

    def _works(self, transport: paramiko.Transport) -> bool:
        if not transport.is_active() or not self._suspect:
            return bool(transport.is_active())
        # It may be a broken link that nobody has noticed yet: only an answer tells.
        with contextlib.suppress(Exception):
            transport.open_session(timeout=_TEST_WITHIN).close()
            return True
        return False

    def _open(self, login: Login) -> paramiko.Transport:
        if login.proxy_command or not login.jumps:
            return open_transport(login, open_socket(login))
        import paramiko

        *before, last = login.jumps
        try:
            jump = pool.get(parse_one(last), tuple(before)).connect()
            where, ours = (login.address, login.port), ("127.0.0.1", 0)
            channel = jump.open_channel("direct-tcpip", where, ours, timeout=login.connect_within)
        except paramiko.SSHException as error:
            raise HostError(f"{last} does not lead to {login.where} ({error})") from None
        except SkyError as error:
            raise HostError(f"{last}, which leads to it, cannot be used: {error}") from None
        return open_transport(login, channel)

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
            The script. Without ``data`` it is on no command line, where others could read it.
        data
            What it reads from standard input.
        within
            Seconds in which it has to print something, or to end.
        sent
            Called with the number of bytes of ``data`` that have left.

        Raises
        ------
        CommandError
            With its last lines, when it fails.
        HostError
            When the connection breaks.
        """
        # What login scripts print comes before the mark.
        script = f"printf %s {shlex.quote(MARK.decode())}\n{script}"
        command = "sh -s" if data is None else f"sh -c {shlex.quote(script)}"
        try:
            with self._in_use(), contextlib.closing(self._start(command)) as channel:
                channel.settimeout(within)
                _write(channel, script.encode() if data is None else data, sent)
                channel.shutdown_write()
                printed = _read(channel.recv).partition(MARK)[2]
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

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep others from hanging up meanwhile, because they need the connection no more."""
        user = object()
        self._commands.add(user)
        try:
            yield
        finally:
            self._commands.discard(user)

    def _start(self, command: str) -> paramiko.Channel:
        """Start a command and return the channel to its input and output."""
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

    def open_bridge(self, command: str) -> socket.socket:
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
        with self._in_use():
            channel = self._start(command)
            try:
                self._await_agent(channel)
            except BaseException:
                channel.close()
                raise
            self._bridges.add(channel)

        def closed() -> None:
            self._bridges.discard(channel)
            self._suspect = True

        return as_socket(channel, closed)

    def _await_agent(self, channel: paramiko.Channel) -> None:
        """Read what the bridge prints until it says that the agent is there."""
        channel.settimeout(CONNECT_WITHIN)
        seen = b""
        try:
            while not seen.endswith(MARK):
                if not (byte := channel.recv(1)):
                    break
                seen += byte
            else:
                channel.settimeout(None)
                return
            status = channel.recv_exit_status()
            said = _read(channel.recv_stderr).decode(errors="replace").strip()
        except OSError:
            self._suspect = True
            raise HostError("its agent did not answer") from None
        if status == NO_AGENT:
            raise AgentGone(said)
        raise HostError(f"the bridge to its agent did not start: {said or status}")


def _write(channel: paramiko.Channel, data: bytes, sent: Callable[[int], None]) -> None:
    for start in range(0, len(data), PIECE):
        channel.sendall(memoryview(data)[start : start + PIECE])
        sent(min(start + PIECE, len(data)))


def _read(receive: Callable[[int], bytes]) -> bytes:
    parts = []
    while part := receive(PIECE):
        parts.append(part)
    return b"".join(parts)
