"""Blobs: content-addressed bytes, so that what a node already has is not sent again.

A pickled value goes over the wire as a message (``pack``) that names its large parts by digest;
those are sent once, in pieces. On a node, a blob is a file in shared memory that every rank maps
privately and writably (``unpack``): a large array is there once, however many ranks use it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3

from jupyter_sky.serialization.object_tokens.tokens import Tokens
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.serialization.pickling import load
from jupyter_sky.transport.frames import ProtocolError
from jupyter_sky.transport.protocol.messages import Blob, Packed

if TYPE_CHECKING:
    from typing_extensions import Buffer

INLINE = 32 * 1024
"""Bytes up to which a part is in the message itself."""

_MAX_INLINE = 1024 * 1024  # total bytes of such parts in one value

PIECE = 512 * 1024
"""Bytes of a piece of a blob: small enough to stay in a processor's cache while it is copied."""

_PARALLEL = 1024 * 1024  # bytes above which hashing in several threads is faster


def digest(data: Buffer) -> str:
    """Return the 256-bit BLAKE3 digest of ``data``, in hexadecimal."""
    size = memoryview(data).nbytes
    threads = blake3.blake3.AUTO if size >= _PARALLEL else 1
    return blake3.blake3(data, max_threads=threads).hexdigest()


class Digest:
    """The digest of data that comes in pieces."""

    def __init__(self) -> None:
        self._hash = blake3.blake3(max_threads=blake3.blake3.AUTO)

    def add(self, data: Buffer) -> None:
        """Add a piece."""
        self._hash.update(data)

    @property
    def text(self) -> str:
        """The digest, as `digest` returns it."""
        return self._hash.hexdigest()


def pack(
    pickled: Pickled, digests: dict[tuple[int, int], str] | None = None
) -> tuple[Packed, dict[str, memoryview]]:
    """Return the message for a pickled value, and the blobs that it names, by digest.

    Parameters
    ----------
    pickled
        The pickled value.
    digests
        Digests of memory, by address and size, so that an array in several values is hashed once;
        new ones are added. They are valid only as long as that memory is not written to.
    """
    digests = {} if digests is None else digests
    blobs: dict[str, memoryview] = {}
    room = _MAX_INLINE

    def part(data: Buffer) -> bytes | Blob:
        nonlocal room
        view = memoryview(data).cast("B")
        if view.nbytes <= min(INLINE, room):
            room -= view.nbytes
            return bytes(view)
        key = known_digest(view, digests)
        blobs[key] = view
        return {"blob": key, "size": view.nbytes}

    message: Packed = {
        "stream": part(pickled.stream),
        "buffers": [part(buffer) for buffer in pickled.buffers],
    }
    return message, blobs


def known_digest(data: Buffer, digests: dict[tuple[int, int], str]) -> str:
    """Return the digest of ``data``, cached by its address if it has one."""
    view = memoryview(data).cast("B")
    address = _address(view)
    if address not in digests:
        key = digest(view)
        if address is None:
            return key
        digests[address] = key
    return digests[address]


def _address(view: memoryview) -> tuple[int, int] | None:
    # Only arrays have a known address; large data that several values share is an array.
    array = getattr(view.obj, "__array_interface__", None)
    return (array["data"][0], view.nbytes) if array else None


def content(packed: Packed) -> str:
    """Return the digest of a packed value: equal for equal content."""
    hasher = blake3.blake3()
    for part in (packed["stream"], *packed["buffers"]):
        if isinstance(part, dict):
            hasher.update(b"blob" + bytes.fromhex(part["blob"]))
        else:
            hasher.update(b"data" + len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()


def references(packed: Packed) -> Iterator[tuple[str, int]]:
    """Yield the digest and size of each blob that a packed value names."""
    for part in (packed["stream"], *packed["buffers"]):
        if isinstance(part, dict):
            yield part["blob"], part["size"]


def pieces(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the pieces of a blob, each with its offset in bytes."""
    for offset in range(0, view.nbytes, PIECE):
        yield offset, view[offset : offset + PIECE]


def unpack(packed: Packed, folder: Path, tokens: Tokens | None = None) -> Any:
    """Unpickle a packed value, whose blobs are files in ``folder``.

    Parameters
    ----------
    packed
        What `pack` made.
    folder
        The folder of the blobs.
    tokens
        The tokens of the objects in it, if later pickles may refer to them.
    """

    def part(data: Any) -> Buffer:
        if isinstance(data, dict):
            return map_privately(folder / file_name(data["blob"]), data["size"])
        # Writable, as the original array was.
        return bytearray(data)

    buffers = [part(buffer) for buffer in packed["buffers"]]
    return load(part(packed["stream"]), buffers, tokens)


def map_privately(path: Path, size: int) -> mmap.mmap:
    """Map a blob such that writes only affect this process; ``OSError`` if it is another user's."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)


def file_name(key: str) -> str:
    """Return the file name of a blob; refuse a key that is not hexadecimal."""
    if not key or key.strip("0123456789abcdef"):
        raise ProtocolError(f"{key!r} is not the name of a blob")
    return key
