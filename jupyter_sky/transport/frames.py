"""Frames: a msgpack message, followed by a payload of raw bytes that is never copied.

A frame is a prefix of two lengths in network order, the message, and the payload::

    uint32 message length | uint64 payload length | message | payload

Messages are plain data. Anyone who can connect to the socket can send one, so nothing in a frame is
unpickled here.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgpack

from jupyter_sky.formatting import format_bytes

if TYPE_CHECKING:
    import socket

    from typing_extensions import Buffer

PREFIX = struct.Struct("!IQ")
LARGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes of a message, at most; what is larger has to be sent as a blob."""

SCRATCH = 256 * 1024
"""Bytes that are received at once, where they are no part of something larger."""

_UNCHECKED = 4096  # bytes of a message too small to claim much memory
_KEPT = 64 * 1024  # bytes of a message after which its packer, which has room for it, is kept
_ADDED = 64 * 1024  # bytes that a receiver may add to a message before passing it on

_of_thread = threading.local()

Message = dict[str, Any]
Destination = Callable[[Message, int], memoryview]
"""Given a message and the size of its payload in bytes, returns where to receive the payload."""


class ProtocolError(Exception):
    """The other side does not speak this protocol."""


def encode(
    message: Mapping[str, Any], payload_size: int = 0, largest: int = LARGEST_MESSAGE
) -> bytes:
    """Return the prefix and message of a frame; ``payload_size`` bytes have to follow."""
    return _framed(_packed(message), payload_size, largest)


class SharedFields:
    """Fields that messages to many receivers share, encoded once.

    Parameters
    ----------
    fields
        The fields by name.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        # Kept, since making a packer takes longer than encoding one of many messages with it.
        self._packer = _make_packer()
        self._body = self._without_header(fields)
        self._starts: dict[int, bytes] = {}  # by the number of further fields

    def encode(self, own: Mapping[str, Any]) -> bytes:
        """Return prefix and message, with what it has of its own; no name may be in both."""
        if not own:
            return self._alone
        start = self._starts.get(len(own))
        if start is None:
            header = _map_header(len(self.fields) + len(own))
            start = self._starts[len(own)] = header + self._body
        return _framed(start + self._without_header(own), 0, LARGEST_MESSAGE)

    @functools.cached_property
    def _alone(self) -> bytes:
        return _framed(_map_header(len(self.fields)) + self._body, 0, LARGEST_MESSAGE)

    def _without_header(self, fields: Mapping[str, Any]) -> bytes:
        packed: bytes = self._packer.pack(fields)
        return packed[len(_map_header(len(fields))) :]


@functools.cache
def _map_header(size: int) -> bytes:
    header: bytes = msgpack.Packer().pack_map_header(size)
    return header


def _packed(message: Mapping[str, Any]) -> bytes:
    # Kept by each thread, as that of `SharedFields`: one that has grown is not.
    packer = getattr(_of_thread, "packer", None) or _make_packer()
    _of_thread.packer = None  # also where it fails, or a value packs something itself
    body: bytes = packer.pack(message)
    if len(body) <= _KEPT:
        _of_thread.packer = packer
    return body


def _make_packer() -> Any:
    return msgpack.Packer(use_bin_type=True, unicode_errors="surrogatepass", default=_plain)


def _framed(body: bytes, payload_size: int, largest: int) -> bytes:
    if len(body) > largest:
        raise ProtocolError(f"a message of {format_bytes(len(body))} is too large")
    return PREFIX.pack(len(body), payload_size) + body


def _plain(value: Any) -> Any:
    """Convert a value that msgpack cannot encode, like a NumPy number."""
    return value.item() if hasattr(value, "item") else str(value)


def decode_message(body: Buffer) -> Message:
    """Return the message in ``body``.

    Raises
    ------
    ProtocolError
        If it is not a message. Memory is only allocated in proportion to its size.
    """
    try:
        if memoryview(body).nbytes > _UNCHECKED:
            _check_complete(body)
        message = msgpack.unpackb(
            body, raw=False, strict_map_key=False, unicode_errors="surrogatepass"
        )
    except Exception as error:
        raise ProtocolError("a frame does not hold a message") from error
    if not isinstance(message, dict):
        raise ProtocolError("a frame does not hold a message")
    return message


def _check_complete(body: Buffer) -> None:
    """Raise an error if ``body`` is shorter than the lengths of its lists claim.

    msgpack allocates memory for a list as soon as it has read its length. A megabyte of nested
    lists, each claiming a million items, would take gigabytes before the first missing item is
    noticed.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=memoryview(body).nbytes)
    unpacker.feed(body)
    unpacker.skip()


def _in_memory(message: Message, size: int) -> memoryview:
    if size > LARGEST_MESSAGE:
        raise ProtocolError(f"a payload of {size} bytes is too large")
    return memoryview(bytearray(size))


class Decoder:
    """Decodes a stream of frames.

    It owns the memory that the stream is received into, so that large messages and payloads are not
    copied: the caller receives into `buffer`, then calls `received` with the number of bytes.

    Parameters
    ----------
    destination
        Where to receive payloads; by default each gets memory of its own, up to `LARGEST_MESSAGE`.
    scratch
        Where to receive small frames first. Decoders may share it if `received` is called on each
        before the next one's `buffer` is used.
    """

    def __init__(
        self, destination: Destination = _in_memory, scratch: memoryview | None = None
    ) -> None:
        self._destination = destination
        self._scratch = memoryview(bytearray(SCRATCH)) if scratch is None else scratch
        self._pending = bytearray()
        self._body: memoryview | None = None
        self._payload_size = 0
        self._message: Message | None = None
        self._payload = memoryview(b"")
        self._filled = 0

    def buffer(self) -> memoryview:
        """Return the memory into which to receive the next bytes of the stream."""
        if self._body is not None:
            return self._body[self._filled :]
        if self._message is not None:
            return self._payload[self._filled :]
        return self._scratch

    def close(self) -> None:
        """Release the memory that the stream was received into; nothing may follow."""
        self._scratch = self._payload = memoryview(b"")
        self._body = None
        self._pending = bytearray()

    def received(self, count: int) -> Iterator[tuple[Message, memoryview]]:
        """Yield the frames that are completed by ``count`` new bytes in `buffer`."""
        if self._body is not None:
            return self._more_of_message(self._body, count)
        if self._message is not None:
            return self._more_of_payload(count)
        return self._more_frames(count)

    def _more_of_message(
        self, body: memoryview, count: int
    ) -> Iterator[tuple[Message, memoryview]]:
        self._filled += count
        if self._filled < len(body):
            return
        message, self._body = decode_message(body), None
        if self._payload_size:
            self._expect_payload(message, self._payload_size)
        else:
            yield message, memoryview(b"")

    def _more_of_payload(self, count: int) -> Iterator[tuple[Message, memoryview]]:
        self._filled += count
        if self._filled == len(self._payload):
            yield self._finish()

    def _more_frames(self, count: int) -> Iterator[tuple[Message, memoryview]]:
        data = self._scratch[:count]
        if self._pending:
            self._pending += data
            data = memoryview(bytes(self._pending))
            self._pending.clear()
        position, size = 0, len(data)
        while size - position >= PREFIX.size:
            message_size, payload_size = PREFIX.unpack_from(data, position)
            if message_size > LARGEST_MESSAGE:
                raise ProtocolError(f"a message of {message_size} bytes is too large")
            start = position + PREFIX.size
            if size - start < message_size:
                if message_size <= len(self._scratch):
                    break
                self._body, self._payload_size = memoryview(bytearray(message_size)), payload_size
                self._filled = size - start
                self._body[: self._filled] = data[start:]
                return
            message = decode_message(data[start : start + message_size])
            position = start + message_size
            if not payload_size:
                yield message, memoryview(b"")
                continue
            self._expect_payload(message, payload_size)
            self._filled = min(payload_size, size - position)
            self._payload[: self._filled] = data[position : position + self._filled]
            position += self._filled
            if self._filled < payload_size:
                return
            yield self._finish()
        if position < size:
            self._pending += data[position:]

    def _expect_payload(self, message: Message, size: int) -> None:
        self._message, self._payload = message, self._place(message, size)
        self._filled = 0

    def _place(self, message: Message, size: int) -> memoryview:
        try:
            place = self._destination(message, size)
        except (LookupError, TypeError, ValueError) as error:
            raise ProtocolError("a message does not say where its payload belongs") from error
        if len(place) != size:
            raise ProtocolError(f"there is no room for a payload of {size} bytes")
        return place

    def _finish(self) -> tuple[Message, memoryview]:
        assert self._message is not None
        frame = self._message, self._payload
        self._message, self._payload, self._filled = None, memoryview(b""), 0
        return frame


class BlockingFrames:
    """Sends and receives messages over a blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._decoder = Decoder()
        self._ready: list[tuple[Message, memoryview]] = []

    @property
    def has_message(self) -> bool:
        """Whether a message has arrived that `receive` has not returned yet."""
        return bool(self._ready)

    def receive(self) -> Message | None:
        """Return the next message, or ``None`` if the other side is gone."""
        while not self._ready:
            try:
                count = self.sock.recv_into(self._decoder.buffer())
            except ConnectionError:
                return None
            if not count:
                return None
            self._ready.extend(self._decoder.received(count))
        return self._ready.pop(0)[0]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send ``message``; block until all of it is sent."""
        self.sock.sendall(encode(message, largest=LARGEST_MESSAGE - _ADDED))
