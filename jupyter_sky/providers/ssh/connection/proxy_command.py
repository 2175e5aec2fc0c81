"""``ProxyCommand``: a command connected to an SSH server, run as ssh runs it."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import threading

from jupyter_sky.formatting import last_terminal_line, without_secrets
from jupyter_sky.providers.ssh.connection.errors import HostError

ENDS_WITHIN = 1.0
"""Seconds for a command to end when it is hung up on, before it is killed."""

_ENDS_BY_ITSELF_WITHIN = 0.2
_KEPT = 16 * 1024  # most bytes of its stderr to keep
_SHOWN = 3  # most lines of it to show

_running: set[ProxyCommand] = set()


class ProxyCommand:
    """A running command, in place of a socket connected to a server.

    It has a session of its own: a Stop, which interrupts the kernel's process group, must not break
    the connection.

    Parameters
    ----------
    command
        The command for the user's shell.
    name, advice
        Its name for the user, and advice if it fails.

    Attributes
    ----------
    status
        Its exit status, as in `subprocess.Popen`, if it has ended by itself.

    Raises
    ------
    HostError
        If there is no such shell.
    """

    def __init__(self, command: str, name: str, advice: str) -> None:
        self._name, self._advice = name, advice
        self.status: int | None = None
        self._maker = os.getpid()
        self._lock = threading.Lock()
        self._closed = self._has_answered = self._has_hung_up = False
        self._said = b""
        shell = os.environ.get("SHELL") or "/bin/sh"
        # A socket for its output, since reading from it can time out. Its input is a pipe, as with
        # ssh: bash would take a socket for a remote login, and read ~/.bashrc. Only this process
        # has the other end, so that the command reads an end of file when this process is killed.
        self._sock, theirs = socket.socketpair()
        self._timeout: float | None = None
        self._sending = threading.Lock()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [shell, "-c", f"exec {command}"],
                    stdin=subprocess.PIPE,
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
            except OSError as error:
                self._sock.close()
                raise HostError(
                    f"{shell} cannot run its {name} ({error.strerror}): set the variable "
                    "SHELL to a shell"
                ) from None
        assert self._process.stdin is not None
        self._input = self._process.stdin
        os.set_blocking(self._input.fileno(), False)
        _running.add(self)
        enough, self._closing = os.pipe()
        self._listener = threading.Thread(
            target=self._listen, args=(enough,), daemon=True, name="sky-proxy"
        )
        self._listener.start()

    def settimeout(self, seconds: float | None) -> None:
        """Set the time-out of sending and receiving."""
        self._timeout = seconds
        self._sock.settimeout(seconds)

    def send(self, data: bytes) -> int:
        """Send bytes, as a socket does."""
        if not self._closed:
            poll = select.poll()
            poll.register(self._input.fileno(), select.POLLOUT)
            poll.poll(None if self._timeout is None else 1000 * self._timeout)
        with self._sending:
            if self._closed:
                raise BrokenPipeError("it is closed")
            try:
                return os.write(self._input.fileno(), data)
            except BlockingIOError:
                raise TimeoutError("it takes no more") from None
            except BrokenPipeError:
                self._has_hung_up = True
                raise

    def recv(self, count: int) -> bytes:
        """Receive bytes, as a socket does."""
        try:
            data = self._sock.recv(count)
        except ConnectionResetError:  # it has ended before it had read everything
            data = b""
        if data:
            self._has_answered = True
        else:
            self._has_hung_up = True
        return data

    def close(self) -> None:
        """End the command, and wait for it."""
        with self._lock:
            with self._sending:
                if self._closed:
                    return
                self._closed = True
                self._input.close()
            if self._has_hung_up and self._wait(ENDS_WITHIN):
                self.status = self._process.returncode
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()
            # At the end of their input, most commands end in good order and tell the other side.
            if not self._wait(_ENDS_BY_ITSELF_WITHIN):
                self.hang_up()
                if not self._wait(ENDS_WITHIN):
                    self._signal(signal.SIGKILL)
                    self._wait(ENDS_WITHIN)
            os.close(self._closing)
            _running.discard(self)

    def hang_up(self) -> None:
        """Send SIGHUP to the command and everything that it runs, as ssh does."""
        if os.getpid() == self._maker:  # not a fork of it
            # Below `nohup jupyter lab`, SIGHUP is ignored, which is inherited.
            is_heard = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
            self._signal(signal.SIGHUP if is_heard else signal.SIGTERM)

    def trouble(self, seconds: float) -> str | None:
        """Return the command's error, if it is the reason why there is no connection.

        Parameters
        ----------
        seconds
            How long this has waited for the server.
        """
        words = self.words()
        why = f" ({words})" if words else ""
        if self.status is not None:
            end = f"ended with status {self.status}" if self.status else "ended"
            if self.status < 0:
                end = f"was ended by signal {-self.status}"
            return f"its {self._name} {end}{why}: {self._advice}"
        if not self._has_answered:
            return (
                f"nothing came through its {self._name} within {seconds:.0f} s{why}: {self._advice}"
            )
        return None

    def words(self) -> str:
        """Return the last lines of stderr of a command that was closed."""
        self._listener.join(ENDS_WITHIN)
        lines = self._said.decode(errors="replace").splitlines()
        plain = [line.strip() for line in map(last_terminal_line, lines) if line.strip()]
        return without_secrets(" / ".join(plain[-_SHOWN:]))

    def _listen(self, enough: int) -> None:
        """Keep the command's stderr, until it has ended, or is closed and silent.

        A background process of it may never end, as of ssh with ``ControlPersist``.
        """
        assert self._process.stderr is not None
        with self._process.stderr as stderr, open(enough, "rb"):
            poll = select.poll()
            for each in (stderr.fileno(), enough):
                poll.register(each, select.POLLIN)
            while any(number == stderr.fileno() for number, _ in poll.poll()):
                if not (data := os.read(stderr.fileno(), _KEPT)):
                    return
                self._said = (self._said + data)[-_KEPT:]

    def _wait(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    def _signal(self, number: int) -> None:
        # Until it is waited for, its process id cannot be reused.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


@atexit.register
def _hang_up_all() -> None:
    """End the commands of connections that were not closed; some never read their input."""
    for each in list(_running):
        each.hang_up()
