"""Links: connections that carry frames both ways, driven by an asyncio loop.

They use the socket itself and no asyncio transport: large payloads are received into the memory
that they belong to, and sent from the memory that they are in, without a copy in between.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jupyter_sky.transport.frames import (
    SCRATCH,
    Decoder,
    Destination,
    Message,
    ProtocolError,
    encode,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from jupyter_sky.transport.together.readiness import Readiness

HIGH_WATER = 8 * 1024 * 1024
"""Unsent bytes above which senders should wait in `Link.drain`."""

HEARTBEAT = 1.0
"""Seconds between two heartbeats, which are mostly empty messages."""

_READS_AT_ONCE = 16
_NOTHING = memoryview(b"")

_of_thread = threading.local()


def _scratch() -> memoryview:
    """Return what all links of this thread receive into: each reads it before the next receives."""
    if not hasattr(_of_thread, "scratch"):
        _of_thread.scratch = memoryview(bytearray(SCRATCH))
    scratch: memoryview = _of_thread.scratch
    return scratch


@dataclass
class Traffic:
    """Bytes that were sent so far, over one link or many."""

    sent: int = 0


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
        Where payloads are received; by default each gets memory of its own.
    silence
        Seconds without anything received after which the other side is taken to be gone: a network
        reports that much later, if at all. Both sides send heartbeats then. ``None`` is for links
        within a machine.
    on_drained
        Called when everything that was queued has been sent.
    heartbeat
        Returns what a heartbeat says beside that this side is there: nothing, by default.
    readiness
        Waits for it together with others; by default the loop does, for it alone.
    traffic
        Counts bytes as soon as they are queued, together with those of others.

    Attributes
    ----------
    unsent_bytes
        Bytes that are queued.
    heard
        When it was last there for certain, by the time of day, which goes on while a computer
        sleeps: what is received when it wakes up may have been sent long ago.
    closed
        Whether it is closed.
    fault
        What was wrong with what the other side sent, if it was closed because of that.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message, memoryview], None],
        on_close: Callable[[], None],
        destination: Destination | None = None,
        silence: float | None = None,
        on_drained: Callable[[], None] | None = None,
        heartbeat: Callable[[], Message] = dict,
        readiness: Readiness | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self._sock = sock
        self._on_message = on_message
        self._on_close = on_close
        self._on_drained = on_drained
        scratch = _scratch()
        self._decoder = Decoder(destination, scratch) if destination else Decoder(scratch=scratch)
        self._unsent: collections.deque[memoryview] = collections.deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self.unsent_bytes = 0
        self._traffic = traffic or Traffic()
        self.heard = self._beat_at = time.time()
        self.closed = False
        self.fault = ""
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)
        self._waiting = readiness or self._loop
        self._waiting.add_reader(sock, self._readable)
        self._silence = silence
        self._last_received = self._loop.time()
        self._heartbeat: asyncio.TimerHandle | None = None
        self._said_by_heartbeat = heartbeat
        if silence is not None:
            self._schedule_heartbeat()

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
        self._traffic.sent += len(view)
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
        self._waiting.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        if self._heartbeat:
            self._heartbeat.cancel()
        self._unsent.clear()
        self.unsent_bytes = 0
        # A link and its owner know each other, and stay until cycles are collected: that goes by
        # their number, and does not know how much memory hangs on them.
        self._decoder.close()
        self._wake()
        self._on_close()

    @property
    def silent_for(self) -> float:
        """Seconds since anything was received."""
        return self._loop.time() - self._last_received

    def _schedule_heartbeat(self) -> None:
        due = self._loop.time() + HEARTBEAT
        self._heartbeat = self._loop.call_later(HEARTBEAT, self._beat, due)

    def _beat(self, due: float) -> None:
        now = self._loop.time()
        if self._last_received >= due - HEARTBEAT:
            self.heard = self._beat_at
        self._beat_at = time.time()
        if now > due + HEARTBEAT:
            # This process was suspended, or busy with something else, and has not received either.
            self._last_received = now
        if self._silence is not None and now - self._last_received > self._silence:
            self.close()
            return
        if not self.unsent_bytes:
            self.send(self._said_by_heartbeat())
        self._schedule_heartbeat()

    def _send_now(self, view: memoryview) -> memoryview:
        while size := len(view):
            try:
                sent = self._sock.send(view)
                if sent == size:
                    return _NOTHING  # as it is mostly
                view = view[sent:]
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                # In the loop: the caller does not expect `on_close` from within `send`.
                self._loop.call_soon(self._end)
                return _NOTHING
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

    def _deliver(self, message: Message, payload: memoryview) -> None:
        try:
            self._on_message(message, payload)
        except ProtocolError:
            raise
        except Exception:
            # An error in the handling of one message must not lose the messages behind it.
            logging.getLogger(__name__).exception("a message could not be handled")

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self) -> None:
        """Close a link that takes nothing any more, after what the other side had sent."""
        if self._readable():
            self._loop.call_soon(self._end)
        else:
            self.close()

    def _readable(self) -> bool:
        """Receive what is there; return whether there may be more.

        A bounded number of reads, so that other links have their turn.
        """
        for _ in range(_READS_AT_ONCE):
            if self.closed:
                return False
            buffer = self._decoder.buffer()
            try:
                count = self._sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                count = 0
            if not count:
                self.close()
                return False
            self._last_received = self._loop.time()
            try:
                for message, payload in self._decoder.received(count):
                    if message:  # and no heartbeat
                        self._deliver(message, payload)
                        if self.closed:
                            return False
            except ProtocolError as error:
                self.fault = str(error)
                self.close()
                return False
            if count < len(buffer):
                return False
        return True
