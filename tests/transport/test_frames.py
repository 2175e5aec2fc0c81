"""Frames: whole messages out of bytes that come in any pieces."""

from __future__ import annotations

import contextlib
import socket
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_sky.transport.compression import expand
from jupyter_sky.transport.frames import (
    LARGEST_MESSAGE,
    PREFIX,
    BlockingFrames,
    Decoder,
    Message,
    ProtocolError,
    SharedFields,
    decode_message,
    encode,
)

INTEGERS = st.integers(-(2**63), 2**64 - 1)
MESSAGES = st.dictionaries(st.text(max_size=5), INTEGERS | st.binary(max_size=50), max_size=4)


def feed(decoder: Decoder, data: bytes) -> list[tuple[Message, bytes]]:
    """Give a decoder all of ``data``, as a socket would."""
    frames = []
    while data:
        buffer = decoder.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        frames += [(message, bytes(payload)) for message, payload in decoder.received(count)]
        data = data[count:]
    return frames


@given(
    frames=st.lists(st.tuples(MESSAGES, st.binary(max_size=300)), max_size=6),
    cuts=st.lists(st.integers(1, 40), max_size=60),
)
def test_frames_survive_any_cuts(frames, cuts) -> None:
    data = b"".join(encode(message, len(payload)) + payload for message, payload in frames)
    decoder, seen, position = Decoder(), [], 0
    for cut in [*cuts, len(data)]:
        seen += feed(decoder, data[position : position + cut])
        position += cut
    seen += feed(decoder, data[position:])
    assert seen == frames


def test_a_payload_goes_where_it_is_wanted() -> None:
    memory = bytearray(10)
    decoder = Decoder(lambda message, size: memoryview(memory)[message["at"] :][:size])
    feed(decoder, encode({"at": 3}, 4) + b"abcd")
    assert memory == b"\0\0\0abcd\0\0\0"


@given(
    message=MESSAGES,
    payload=st.binary(max_size=20),
    changes=st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=6)), max_size=4),
    rest=st.binary(max_size=60),
)
@settings(max_examples=300)
def test_damaged_frames_raise_one_error_or_none(message, payload, changes, rest) -> None:
    data = bytearray(encode(message, len(payload)) + payload + rest)
    for at, new in changes:
        at %= len(data)
        data[at : at + len(new)] = new
    with contextlib.suppress(ProtocolError):
        for found, _ in feed(Decoder(), bytes(data)):
            assert isinstance(found, dict)


def test_lists_that_claim_more_than_there_is_take_no_memory() -> None:
    claims = b"\xdd" + struct.pack("!I", 1_000_000)
    body = (b"\x81\xa1a" + claims * 400).ljust(1_000_000, b"\xc0")
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_message(body)
        # Of 3 GB, and beside what other threads take meanwhile.
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=50), st.none() | st.integers() | st.text(max_size=3) | st.floats())
@settings(max_examples=200)
def test_damaged_pieces_raise_one_error_or_none(payload: bytes, whole: object) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(expand({"whole": whole}, memoryview(payload), 1000)) <= 1000


def test_a_message_that_is_too_large_or_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="too large"):
        feed(Decoder(), PREFIX.pack(LARGEST_MESSAGE + 1, 0))
    with pytest.raises(ProtocolError):
        feed(Decoder(), PREFIX.pack(1, 0) + b"\x01")
    with pytest.raises(ProtocolError):
        feed(Decoder(), PREFIX.pack(3, 0) + b"\xc1\xc1\xc1")


def test_blocking_frames_end_with_the_other_side() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames = BlockingFrames(theirs)
        BlockingFrames(ours).send({"a": 1})
        BlockingFrames(ours).send({"a": 2})
        assert frames.receive() == {"a": 1}
        assert frames.receive() == {"a": 2}
        ours.close()
        assert frames.receive() is None


@given(MESSAGES, MESSAGES)
def test_a_message_with_shared_fields_is_as_one_that_was_encoded_whole(
    shared: Message, own: Message
) -> None:
    own = {name: value for name, value in own.items() if name not in shared}
    assert SharedFields(shared).encode(own) == encode({**shared, **own})


def test_many_fields_can_be_shared() -> None:
    shared, own = {f"s{n}": n for n in range(20)}, {f"o{n}": n for n in range(20)}
    [(message, _)] = feed(Decoder(), SharedFields(shared).encode(own))
    assert message == {**shared, **own}


class _Number:
    """A number of a library, which encodes something itself when it is asked for its value."""

    def item(self) -> int:
        self.seen = encode({"inner": 1})
        return 5


def test_messages_encoded_within_or_after_one_that_fails_are_whole() -> None:
    whole = encode({"a": 1})
    number = _Number()
    [(message, _)] = feed(Decoder(), encode({"before": "x", "outer": number, "after": "y"}))
    assert message == {"before": "x", "outer": 5, "after": "y"}
    assert feed(Decoder(), number.seen) == [({"inner": 1}, b"")]
    nested: list[object] = []
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(ValueError, match="recursion"):
        encode({"first": "x", "deep": nested})
    assert encode({"a": 1}) == whole


def test_a_large_message_leaves_no_memory_behind() -> None:
    encode({"a": 1})
    tracemalloc.start()
    try:
        encode({"a": b"x" * 8_000_000})
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
