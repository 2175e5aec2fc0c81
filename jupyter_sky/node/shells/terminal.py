"""A pseudo-terminal with a shell for a remote user."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

_PIECE = 64 * 1024
_KEPT = 256 * 1024  # bytes of unread output after which programs have to wait
_QUIET = 20.0  # seconds after which a read is answered empty
_ENDS_WITHIN = 2.0  # seconds after the terminal was hung up

# A session leader gets the first terminal that it opens as its controlling one, so that Ctrl-C
# reaches the processes in it. The limit of open files is that of ranks, not the agent's.
_BEGIN = 'exec <>"$1" >&0 2>&0; ulimit -S -n "$2" 2>/dev/null; shift 2; exec "$@"'

Read = tuple[bytes, "int | None"]
"""What was printed, and the exit status of the shell, once there is one and all was read."""


class Terminal:
    """A terminal with a process in it; `open` makes one.

    Parameters
    ----------
    process
        The process.
    fd
        Our end of the terminal, which this object owns from now on.
    """

    def __init__(self, process: asyncio.subprocess.Process, fd: int) -> None:
        self._process = process
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._printed = bytearray()
        self._typed = bytearray()
        self._status: int | None = None
        self._waiting: deque[asyncio.Future[Read]] = deque()
        self._asked = self._loop.time()
        self._is_open = True
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)
        self._end = self._loop.create_task(self._wait_for_end())

    @classmethod
    async def open(
        cls, command: Sequence[str], env: Mapping[str, str], cwd: Path, files: int, size: Size
    ) -> Terminal:
        """Start a program in a new terminal.

        Parameters
        ----------
        command
            The program and its arguments.
        env
            Its environment.
        cwd
            The folder that it starts in.
        files
            Its limit of open files.
        size
            Rows and columns of the terminal.

        Raises
        ------
        OSError
            If no terminal is left, or the program does not start.
        """
        ours, theirs = os.openpty()
        try:
            _set_size(ours, size)
            begin = ("/bin/sh", "-c", _BEGIN, "sh", os.ttyname(theirs), str(files))
            process = await asyncio.create_subprocess_exec(
                *begin,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return cls(process, ours)

    @property
    def session(self) -> int:
        """The session of the terminal, which is that of the shell."""
        return self._process.pid

    @property
    def unread_for(self) -> float:
        """Seconds since output was last requested; 0 while a request waits."""
        return 0.0 if self._waiting else self._loop.time() - self._asked

    @property
    def has_ended(self) -> bool:
        """Whether the shell has ended."""
        return self._status is not None

    async def read(self) -> Read:
        """Return new output, as soon as there is any.

        Several requests may wait at a time: they are answered in order of arrival.
        """
        answer: asyncio.Future[Read] = self._loop.create_future()
        self._waiting.append(answer)
        self._answer()
        quiet = self._loop.call_later(_QUIET, self._say_nothing, answer)
        try:
            return await answer
        finally:
            quiet.cancel()
            if answer in self._waiting:  # the requester is gone
                self._waiting.remove(answer)
            self._asked = self._loop.time()

    def type(self, data: bytes) -> None:
        """Send the program what the user has typed."""
        if self._is_open:
            self._typed += data
            self._writable()

    def resize(self, size: Size) -> None:
        """Resize the terminal."""
        if self._is_open:
            _set_size(self._fd, size)

    async def hang_up(self) -> None:
        """Hang up the terminal, as if the user had closed it.

        A process of another user, as of `exec sudo -i`, need not end.
        """
        self._close()
        for numbers in ((signal.SIGHUP, signal.SIGCONT), (signal.SIGKILL,)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                for number in numbers:
                    self._process.send_signal(number)
            await asyncio.wait({self._end}, timeout=_ENDS_WITHIN)

    async def _wait_for_end(self) -> None:
        code = await self._process.wait()
        if self._is_open:
            with contextlib.suppress(OSError):  # drop unread output
                while data := os.read(self._fd, _PIECE):
                    self._printed += data
                    if len(self._printed) > 2 * _KEPT:  # processes left behind continue to print
                        break
        self._close()
        self._status = 128 - code if code < 0 else code
        self._answer()

    def _readable(self) -> None:
        try:
            while len(self._printed) < _KEPT:
                if not (data := os.read(self._fd, _PIECE)):
                    raise EOFError
                self._printed += data
        except BlockingIOError:
            pass
        except (OSError, EOFError):  # no process has it open any more
            self._loop.remove_reader(self._fd)
        if len(self._printed) >= _KEPT:
            self._loop.remove_reader(self._fd)
        self._answer()

    def _answer(self) -> None:
        while self._waiting and (self._printed or self._status is not None):
            answer = self._waiting.popleft()
            if answer.done():
                continue
            data = bytes(self._printed[:_KEPT])
            del self._printed[:_KEPT]
            answer.set_result((data, None if self._printed else self._status))
            if self._is_open:
                self._loop.add_reader(self._fd, self._readable)

    def _say_nothing(self, answer: asyncio.Future[Read]) -> None:
        if not answer.done():
            self._waiting.remove(answer)
            answer.set_result((b"", None))

    def _writable(self) -> None:
        try:
            count = os.write(self._fd, self._typed)
        except BlockingIOError:
            count = 0
        except OSError:
            count = len(self._typed)
        del self._typed[:count]
        if self._typed:
            self._loop.add_writer(self._fd, self._writable)
        else:
            self._loop.remove_writer(self._fd)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            os.close(self._fd)


Size = tuple[int, int]
"""Rows and columns."""

_LARGEST = 0xFFFF


def _set_size(fd: int, size: Size) -> None:
    rows, columns = (max(1, min(each, _LARGEST)) for each in size)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
