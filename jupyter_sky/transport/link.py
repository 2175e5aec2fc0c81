"""A link: one connection that carries frames both ways, driven by an asyncio loop.

It works on the socket itself rather than through an asyncio transport: large payloads are received
where they belong and sent from where they lie, without a copy in between.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_sky.transport.frames import Decoder, Destination, Message, ProtocolError, encode

if TYPE_CHECKING:
    from typing_extensions import Buffer

HIGH_WATER = 8 * 1024 * 1024
"""Unsent bytes above which a well-behaved sender waits in ``drain``."""

BEAT = 1.0
"""Seconds between two signs of life on a link that listens for them."""

_READS_AT_ONCE = 16


class Link:
    """One connection that carries frames.

    Parameters
    ----------
    sock
        A connected stream socket; the link owns it from here on.
    on_message
        Called in the loop for each frame, with message and payload.
    on_close
        Called once when the other side is gone or ``close`` was called.
    destination
        Where payloads are received; by default in memory of their own.
    silence
        Seconds without a sign of life after which the other side is taken to be gone; a network
        tells of that much later, if at all. Both sides send such signs then. ``None`` is for links
        that stay within a machine.
    on_drained
        Called when all that was queued has left.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message, memoryview], None],
        on_close: Callable[[], None],
        destination: Destination | None = None,
        silence: float | None = None,
        on_drained: Callable[[], None] | None = None,
    ) -> None:
        self._sock = sock
        self._on_message = on_message
        self._on_close = on_close
        self._on_drained = on_drained
        self._decoder = Decoder(destination) if destination else Decoder()
        self._unsent: collections.deque[memoryview] = collections.deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self.unsent_bytes = 0
        self.sent_bytes = 0
        self.closed = False
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)
        self._loop.add_reader(sock, self._readable)
        self._silence = silence
        self._heard = self._loop.time()
        self._beating: asyncio.TimerHandle | None = None
        if silence is not None:
            self._beat_again()

    def send(self, message: Mapping[str, Any], payload: Buffer = b"") -> None:
        """Queue a frame; it leaves in order, as soon as the socket takes it."""
        view = memoryview(payload).cast("B")
        self.send_encoded(encode(message, len(view)))
        if len(view):
            self.send_encoded(view)

    def send_encoded(self, data: Buffer) -> None:
        """Queue bytes that are already a frame, or a part of one."""
        if self.closed:
            return
        view = memoryview(data)
        self.sent_bytes += len(view)
        if not self._unsent:
            view = self._send_now(view)
            if not len(view):
                return
            self._loop.add_writer(self._sock, self._writable)
        self._unsent.append(view)
        self.unsent_bytes += len(view)

    async def drain(self) -> None:
        """Wait until little enough is unsent for more to be queued."""
        while self.unsent_bytes > HIGH_WATER and not self.closed:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Close the connection; what is unsent is dropped."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        if self._beating:
            self._beating.cancel()
        self._unsent.clear()
        self.unsent_bytes = 0
        self._wake()
        self._on_close()

    def _beat_again(self) -> None:
        self._beating = self._loop.call_later(BEAT, self._beat, self._loop.time() + BEAT)

    def _beat(self, due: float) -> None:
        now = self._loop.time()
        if now > due + BEAT:
            # This process slept, or was busy with something else, and has not listened either.
            self._heard = now
        if self._silence is not None and now - self._heard > self._silence:
            self.close()
            return
        if not self.unsent_bytes:
            self.send({})
        self._beat_again()

    def _send_now(self, view: memoryview) -> memoryview:
        while len(view):
            try:
                view = view[self._sock.send(view) :]
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                # The reader sees the end of the connection too, and closes the link in its turn.
                self._loop.call_soon(self.close)
                return memoryview(b"")
        return view

    def _writable(self) -> None:
        while self._unsent:
            view = self._unsent[0]
            rest = self._send_now(view)
            if self.closed or not self._unsent:
                return
            self.unsent_bytes -= len(view) - len(rest)
            if len(rest):
                self._unsent[0] = rest
                break
            self._unsent.popleft()
        if not self._unsent:
            self._loop.remove_writer(self._sock)
            if self._on_drained:
                self._on_drained()
        if self.unsent_bytes <= HIGH_WATER:
            self._wake()

    def _hand_over(self, message: Message, payload: memoryview) -> None:
        if not message:
            return  # a sign of life
        try:
            self._on_message(message, payload)
        except ProtocolError:
            raise
        except Exception:
            # What goes wrong with one message must not cost those behind it.
            logging.getLogger(__name__).exception("a message could not be handled")

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _readable(self) -> None:
        # A bounded number of reads, so that one busy link does not keep others waiting.
        for _ in range(_READS_AT_ONCE):
            if self.closed:
                return
            buffer = self._decoder.buffer()
            try:
                count = self._sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                count = 0
            if not count:
                self.close()
                return
            self._heard = self._loop.time()
            try:
                for message, payload in self._decoder.received(count):
                    self._hand_over(message, payload)
                    if self.closed:
                        return
            except ProtocolError:
                self.close()
                return
            if count < len(buffer):
                return
