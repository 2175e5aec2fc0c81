"""SSH channels: the conversation with a command, and a socket connected to one.

paramiko's channels are not file descriptors, which an event loop could wait for: two threads carry
data between them and the socket.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from jupyter_sky.formatting import format_bytes
from jupyter_sky.providers.ssh.connection.errors import CommandError
from jupyter_sky.transport.bridge import END, MARK

if TYPE_CHECKING:
    import paramiko

PIECE = 256 * 1024

MOST_PRINTED = 4 * 1024 * 1024
"""Bytes that a command may print: ours print much less, and a host is not to fill this memory."""

_BUFFER = 4 * 1024 * 1024
_LAST_WORDS_WITHIN = 1.0


def as_socket(channel: paramiko.Channel, on_close: Callable[[], None]) -> socket.socket:
    """Return a socket that is connected to a channel, until one of the two is closed.

    Parameters
    ----------
    on_close
        Called in a thread once both are closed.
    """
    ours, theirs = socket.socketpair()
    for side in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            side.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    up = threading.Thread(target=_upstream, args=(theirs, channel), daemon=True, name="sky-bridge")

    def carry() -> None:
        up.start()
        _downstream(theirs, channel)
        up.join()
        theirs.close()
        on_close()

    threading.Thread(target=carry, daemon=True, name="sky-bridge").start()
    return ours


def _upstream(sock: socket.socket, channel: paramiko.Channel) -> None:
    # In pieces, without copying the rest: `sendall` of a lot of data is quadratic.
    buffer = memoryview(bytearray(PIECE))
    with contextlib.suppress(OSError, EOFError):
        while count := sock.recv_into(buffer):
            channel.sendall(buffer[:count])
    # The other thread may be waiting for a host that never answers again.
    with contextlib.suppress(OSError, EOFError):
        channel.close()


def _downstream(sock: socket.socket, channel: paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(PIECE):
            sock.sendall(data)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class Said(NamedTuple):
    """What a script of ours has said, if it has begun, and how it has ended.

    Login scripts print what comes before it.
    """

    before: str
    has_begun: bool
    printed: str
    errors: str
    status: int


def converse(
    channel: paramiko.Channel,
    data: bytes,
    within: float,
    sent: Callable[[int], None],
    ends_with_us: bool,
) -> Said:
    """Give a command its input, and return what it says; the arguments are as for `HostShell.run`.

    Raises
    ------
    CommandError
        If it says too much.
    TimeoutError
        If it says nothing in time.
    OSError, EOFError
        If the connection breaks.
    """
    channel.settimeout(within)
    try:
        for start in range(0, len(data), PIECE):
            channel.sendall(memoryview(data)[start : start + PIECE])
            sent(min(start + PIECE, len(data)))
        if not ends_with_us:
            channel.shutdown_write()
    except OSError:
        # If the script ended before it read everything, its status says why.
        if not channel.closed or not channel.get_transport().is_active():
            raise
    before, mark, printed = read(channel.recv, END).partition(MARK)
    printed, ended, _ = printed.partition(END)
    if ended:  # what a login script has started may have the output open
        channel.settimeout(_LAST_WORDS_WITHIN)
    errors = read(channel.recv_stderr, may_go_on=bool(ended))
    if not channel.status_event.wait(within):
        raise TimeoutError
    status = channel.exit_status
    if status < 0 and not channel.get_transport().is_active():
        raise EOFError("nothing was said of how the command ended")
    text, output, trouble = (each.decode(errors="replace") for each in (before, printed, errors))
    return Said(text, bool(mark), output, trouble, status)


def read(receive: Callable[[int], bytes], last: bytes = b"", may_go_on: bool = False) -> bytes:
    """Return everything that arrives until the end.

    Parameters
    ----------
    receive
        Returns what has arrived; nothing at the end.
    last
        Words that are the end, whatever follows them.
    may_go_on
        Whether it is over when nothing arrives in time.

    Raises
    ------
    CommandError
        If it is too much.
    TimeoutError
        If nothing arrives in time.
    """
    parts = bytearray()
    with contextlib.suppress(TimeoutError) if may_go_on else contextlib.nullcontext():
        while part := receive(PIECE):
            parts += part
            if len(parts) > MOST_PRINTED:
                raise CommandError(f"a command printed more than {format_bytes(MOST_PRINTED)}")
            if last and last in parts[-len(part) - len(last) :]:
                break
    return bytes(parts)
