"""An SSH connection to a host: commands over it, and bridges to agents.

Everything here blocks, and is called in separate threads; every wait is bounded.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import last_line
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.providers.ssh.connection import handshake, no_room
from jupyter_sky.providers.ssh.connection.agent_channel import WINDOW, await_bridge, open_stream
from jupyter_sky.providers.ssh.connection.channel_socket import as_socket, converse
from jupyter_sky.providers.ssh.connection.errors import (
    CommandError,
    HostError,
    no_answer,
    not_led,
    runs_nothing,
)
from jupyter_sky.providers.ssh.connection.host_shell import (
    ANSWER_WITHIN,
    for_login_shell,
    script_with_input,
)
from jupyter_sky.providers.ssh.connection.proxy_command import ProxyCommand
from jupyter_sky.providers.ssh.connection.ssh_config import (
    CONNECT_WITHIN,
    Login,
    check_way,
    read_login,
)
from jupyter_sky.providers.ssh.connection.targets import Target, parse_one
from jupyter_sky.providers.ssh.connection.users import Users

if TYPE_CHECKING:
    import paramiko

    from jupyter_sky.providers.ssh.connection.transport import Transport

_TEST_WITHIN = 2.0
_HEARD_WITHIN = 3.0  # seconds; agents give a sign of life each second

# Exceptions say what goes wrong; paramiko's own log is for users who configure it.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class ConnectionPool:
    """The SSH connections of this process; hosts behind the same jump host share its connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[tuple[str, tuple[str, ...], int], SSHConnection] = {}

    def get(self, target: Target, via: tuple[str, ...] = (), part: int = 0) -> SSHConnection:
        """Return a connection to a host.

        Parameters
        ----------
        via
            As in `SSHConnection`.
        part
            Which of several connections: by default, servers allow ten sessions on each.
        """
        with self._lock:
            new = SSHConnection(target, via)
            there = self._connections.setdefault((str(target), via, part), new)
        there.doubt_if_unused()
        return there

    def named(self, host: str, via: tuple[str, ...] = (), part: int = 0) -> SSHConnection:
        """Return a connection to a host by its name, as `parse_one` reads it."""
        return self.get(parse_one(host), via, part)

    def set_login(self, target: Target, login: Login) -> SSHConnection:
        """Return the connection to a host, using this login from now on."""
        key = str(target), (), 0
        with self._lock:
            there = self._connections.get(key)
            if there is None or there.login != login:
                if there is not None:
                    there.close()
                there = self._connections[key] = SSHConnection(target, login=login)
            return there


pool = ConnectionPool()


class SSHConnection:
    """An SSH connection to a host, made when first needed, and again after it broke.

    Attributes
    ----------
    target
        The host.
    via
        Jump hosts, in place of those in the configuration.
    login
        How to log in, in place of the configuration.
    """

    def __init__(
        self, target: Target, via: tuple[str, ...] = (), login: Login | None = None
    ) -> None:
        self.target = target
        self.login = login
        self._via = via
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._server: handshake.Server | None = None
        self._suspect, self._has_streams = False, True
        self._commands: set[paramiko.Channel] = set()
        self._users = Users(self.close)
        self._jump: SSHConnection | None = None
        self._opening: socket.socket | ProxyCommand | None = None
        self._closings = 0

    def connect(self) -> Transport:
        """Return the connection, making it if necessary.

        Raises
        ------
        HostError
            With the reason why that fails.
        """
        with self._users.briefly(), self._lock:
            closings = self._closings
            if (there := self._transport) is not None and not self._works(there):
                there.close()
                self._transport = None
                if self._closings != closings:  # by somebody else, while this waited
                    raise HostError("it was stopped")
            if self._transport is None:
                login = self.login or read_login(self.target)
                if self._via:
                    login = replace(login, jumps=self._via, proxy_command=None)
                self._transport = handshake.patiently(
                    lambda: self._open(login), lambda: self._closings != closings
                )
            self._suspect = False
            return self._transport

    @property
    def is_answering(self) -> bool:
        """Whether the host, or one on the way to it, has said something in the last moments."""
        is_heard = self._server is not None and self._server.silent_for < _HEARD_WITHIN
        return is_heard or (self._jump is not None and self._jump.is_answering)

    def _meet(self, server: handshake.Server) -> None:
        self._server = server

    def doubt_if_unused(self) -> None:
        """Have who connects next find out whether the host is still there, if nobody else would."""
        if not self._users:
            self._suspect = True

    def close(self) -> None:
        """Hang up; everything in progress over the connection, including connecting, fails."""
        self._users.stop_timer()
        self._closings += 1
        if (opening := self._opening) is not None:
            if isinstance(opening, socket.socket):
                with contextlib.suppress(OSError):  # the thread that connects would go on waiting
                    opening.shutdown(socket.SHUT_RDWR)
            opening.close()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        jump = self._jump
        self._leave_jump()
        if jump is not None and jump._opening is not None and not jump._users.lasting:
            jump.close()  # it was being connected to for this one

    def _leave_jump(self) -> None:
        jump, self._jump = self._jump, None
        if jump is not None:
            jump._users.discard(self)
            jump.close_if_unused()

    def close_if_unused(self) -> None:
        """Hang up, unless an agent, another host, a command or who just connects uses it."""
        self._users.hang_up_if_none()

    def abort(self) -> None:
        """End the running commands, and hang up unless an agent or another host uses it."""
        for channel in list(self._commands):
            channel.close()
        if not self._users.lasting:
            self.close()

    def _works(self, transport: Transport) -> bool:
        if not transport.is_active():
            return False
        # The link may be broken without anybody having noticed: only an answer tells.
        is_in_doubt = self._suspect or transport.silent_for > _HEARD_WITHIN
        # A host that only pauses goes on with its commands, which another connection would lose.
        within = CONNECT_WITHIN if self._is_at_work else _TEST_WITHIN
        return not is_in_doubt or transport.answers(within)

    @property
    def _is_at_work(self) -> bool:
        """Whether a command runs over this connection, or over one that it leads to."""
        behind = (each for each in self._users.lasting if isinstance(each, SSHConnection))
        return bool(self._commands) or any(each._is_at_work for each in behind)

    def _open(self, login: Login) -> Transport:
        if login.proxy_command or not login.jumps:
            closings = self._closings

            def begun(opening: socket.socket | ProxyCommand) -> None:
                self._opening = opening
                if self._closings != closings:  # when there was nothing to close yet
                    opening.close()
                    raise HostError("it was stopped")

            try:
                opened = handshake.open_socket(login, begun)
                begun(opened)
                return handshake.open_transport(login, opened, self._meet)
            finally:
                self._opening = None
        import paramiko

        check_way(self.target, login)
        *before, last = login.jumps
        jump = self._jump = pool.named(last, via=tuple(before))
        jump._users.add(self)
        try:
            where, ours = (login.address, login.port), ("127.0.0.1", 0)
            try:
                channel = jump.connect().open_channel(
                    "direct-tcpip", where, ours, timeout=login.connect_within
                )
            except paramiko.SSHException as error:
                raise HostError(not_led(last, login.where, error)) from None
            except SkyError as error:
                raise HostError(f"{last}, which leads to it, cannot be used: {error}") from None
            return handshake.open_transport(login, channel, self._meet)
        except BaseException:
            self._leave_jump()
            raise

    # Commands

    def run(
        self,
        script: str,
        data: bytes | None = None,
        within: float = ANSWER_WITHIN,
        sent: Callable[[int], None] = lambda count: None,
        ends_with_us: bool = False,
    ) -> str:
        """Run a shell script on the host and return what it prints.

        Parameters
        ----------
        script
            The script. Without ``data`` it is not on a command line, where others could read it.
        data
            Its standard input.
        within
            Seconds within which it has to print something or end.
        sent
            Called with the number of bytes of ``data`` sent.
        ends_with_us
            Whether to end a script without ``data``, with everything that it runs, if the
            connection is closed before.

        Raises
        ------
        CommandError
            With its last lines, if it fails.
        HostError
            If the connection breaks.
        """
        command, data = script_with_input(script, data, ends_with_us)
        try:
            with self._command(command) as channel:
                said = converse(channel, data, within, sent, ends_with_us)
        except TimeoutError:
            raise CommandError.of_silence(within) from None
        except (OSError, EOFError) as error:
            if self._server is not None and self._server.is_gone:
                raise HostError(no_answer(handshake.GIVEN_UP_AFTER)) from None
            raise HostError(f"the connection broke ({str(error) or 'end of file'})") from None
        if not said.has_begun:
            text = said.before + said.errors
            raise HostError(no_room.for_processes(text) or runs_nothing(last_line(text)))
        if said.status:
            lines = (said.printed + said.errors).strip().splitlines()
            if said_of_disk := no_room.explain(lines, self.run, self.target):
                raise CommandError(said_of_disk)
            raise CommandError.of_end(said.status, lines)
        return said.printed

    @contextlib.contextmanager
    def _command(self, command: str) -> Iterator[paramiko.Channel]:
        """Start a command; provide the channel to its input and output."""
        with self._users.briefly(), contextlib.closing(self._start(command)) as channel:
            self._commands.add(channel)
            try:
                yield channel
            finally:
                self._commands.discard(channel)

    def _start(self, command: str) -> paramiko.Channel:
        """Start a command of sh and return the channel to its input and output."""
        transport = self.connect()
        try:
            return transport.start_command(for_login_shell(command), WINDOW, CONNECT_WITHIN)
        except HostError:
            self._suspect = True
            raise

    # Agents

    def open_bridge(self, command: str, path: str | None = None) -> socket.socket:
        """Return a socket that is connected to an agent.

        Parameters
        ----------
        command
            Runs ``jupyter_sky.node.bridge`` on the host.
        path
            The agent's socket, if the bridge leads to one: without a bridge, if the server supports
            that.

        Raises
        ------
        AgentGone
            When the agent is gone.
        HostError
            If the host cannot be reached.
        """
        with self._users.briefly():
            channel = self._open_stream(path) if path and self._has_streams else None
            if channel is None:
                channel = self._start_bridge(command)
                # If only the bridge can reach it, the server does not allow such channels.
                self._has_streams = self._has_streams and path is None
            self._users.add(channel)

        def closed() -> None:
            self._suspect = True
            self._users.discard(channel)

        return as_socket(channel, closed)

    def _open_stream(self, path: str) -> paramiko.Channel | None:
        try:
            transport = self.connect()
            # A bridge sees whose socket it is. The server connects to anybody's: after a reboot,
            # who has seen the path may have made it anew.
            if not self._is_own(transport, str(PurePosixPath(path).parents[1])):
                return None
            return open_stream(transport, path)
        except HostError:
            self._suspect = True
            raise

    def note_own(self, folder: str) -> None:
        """Note that a folder of agents has been seen to be the user's own."""
        if (transport := self._transport) is not None:
            transport.own_folders.add(folder)

    def _is_own(self, transport: Transport, folder: str) -> bool:
        """Return whether a folder of agents is the user's own; it is asked once for each."""
        if folder not in transport.own_folders:
            quoted = shlex.quote(folder)
            said = self.run(f"test -O {quoted} && test ! -L {quoted} && echo own || true")
            if said.strip() != "own":
                return False
            transport.own_folders.add(folder)
        return True

    def _start_bridge(self, command: str) -> paramiko.Channel:
        with contextlib.ExitStack() as undone:
            channel = undone.enter_context(contextlib.closing(self._start(command)))
            try:
                await_bridge(channel)
            except AgentGone:
                raise
            except OSError:
                self._suspect = True
                raise HostError("its agent did not answer") from None
            undone.pop_all()
            return channel
