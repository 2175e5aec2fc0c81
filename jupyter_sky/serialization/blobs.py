"""Blobs: content-addressed bytes, so that what a node already has is not sent again.

A pickled value goes over the wire as a message (``pack``); its large parts are named by their
digest and travel once, in pieces. On a node a blob is a file in shared memory that every rank maps
privately and writable (``unpack``), so a large array exists once however many ranks use it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3

from jupyter_sky.serialization.object_tokens import Tokens
from jupyter_sky.serialization.pickling import Pickled, load
from jupyter_sky.transport.frames import ProtocolError
from jupyter_sky.transport.messages import Blob, Packed

if TYPE_CHECKING:
    from typing_extensions import Buffer

INLINE = 32 * 1024
"""Bytes up to which a part travels inside the message."""

_INLINE_IN_ALL = 1024 * 1024

PIECE = 512 * 1024
"""Bytes of a piece of a blob: small enough to stay in a processor's cache on its way."""

_PARALLEL = 1024 * 1024


def digest(data: Buffer) -> str:
    """Return the 256-bit BLAKE3 digest of ``data``, in hexadecimal."""
    size = memoryview(data).nbytes
    threads = blake3.blake3.AUTO if size >= _PARALLEL else 1
    return blake3.blake3(data, max_threads=threads).hexdigest()


def pack(
    pickled: Pickled, digests: dict[tuple[int, int], str] | None = None
) -> tuple[Packed, dict[str, memoryview]]:
    """Return ``pickled`` as a message, and the blobs that it names by digest.

    Parameters
    ----------
    pickled
        What was pickled.
    digests
        Those of memory that other values of the same moment lie in, by address and size; what is
        found here is added.
    """
    digests = {} if digests is None else digests
    blobs: dict[str, memoryview] = {}
    room = _INLINE_IN_ALL

    def part(data: Buffer) -> bytes | Blob:
        nonlocal room
        view = memoryview(data).cast("B")
        if view.nbytes <= min(INLINE, room):
            room -= view.nbytes
            return bytes(view)
        place = _address(view)
        key = digests.get(place) if place else None
        if key is None:
            key = digest(view)
        if place:
            digests[place] = key
        blobs[key] = view
        return {"blob": key, "size": view.nbytes}

    message: Packed = {
        "stream": part(pickled.stream),
        "buffers": [part(buffer) for buffer in pickled.buffers],
    }
    return message, blobs


def _address(view: memoryview) -> tuple[int, int] | None:
    # Python tells only of arrays where they lie; those are what is large and shared.
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
    """Yield digest and size of each blob that a packed value names."""
    for part in (packed["stream"], *packed["buffers"]):
        if isinstance(part, dict):
            yield part["blob"], part["size"]


def pieces(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the pieces of a blob, each with its offset in bytes."""
    for offset in range(0, view.nbytes, PIECE):
        yield offset, view[offset : offset + PIECE]


def unpack(packed: Packed, folder: Path, tokens: Tokens | None = None) -> Any:
    """Unpickle a packed value whose blobs are files in ``folder``.

    Parameters
    ----------
    packed
        What ``pack`` made.
    folder
        Where the blobs are.
    tokens
        Those of the objects in it, if what comes later may refer to them.
    """

    def part(data: Any) -> Buffer:
        if isinstance(data, dict):
            return map_privately(folder / file_name(data["blob"]), data["size"])
        # A buffer has to be writable, as the array that it was.
        return bytearray(data)

    buffers = [part(buffer) for buffer in packed["buffers"]]
    return load(part(packed["stream"]), buffers, tokens)


def map_privately(path: Path, size: int) -> mmap.mmap:
    """Map a blob so that writing to it changes the memory of this process only."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)


def file_name(key: str) -> str:
    """Return the file name of a blob; a key that is not hexadecimal is refused."""
    if not key or key.strip("0123456789abcdef"):
        raise ProtocolError(f"{key!r} is not the name of a blob")
    return key
