"""Blobs: content-addressed bytes, so that what a node already has is not sent again.

A pickled value goes over the wire as a message (``pack``) that names its large parts by digest;
those are sent once, in pieces. On a node, a blob is a file in shared memory that every rank maps
privately and writably (``unpack``): a large array is there once, however many ranks use it. Where
there are very many parts, small ones share blobs.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3

from jupyter_sky.serialization.object_tokens.tokens import Tokens
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.serialization.pickling import load
from jupyter_sky.transport.blobs.packed import Blob, BlobSlice, Packed
from jupyter_sky.transport.frames import ProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer

INLINE = 32 * 1024
"""Bytes up to which a part is in the message itself."""

_MAX_INLINE = 1024 * 1024  # total bytes of such parts in one value

_MANY = 1000
"""Parts from which on a blob, with its file and its request, costs more for each than its bytes."""

_SMALL = 1024 * 1024  # bytes up to which one of so many shares a blob with others

# Of a value that has changed in one small part, all that shares its blob is sent again.
_SHARED = 4 * 1024 * 1024  # bytes of a shared blob, on average
_MAX_SHARED = 4 * _SHARED

_ALIGNED = 64  # bytes: arrays of all types begin where vector instructions work best

PIECE = 512 * 1024
"""Bytes of a piece of a blob: small enough to stay in a processor's cache while it is copied."""

_MAP_FIXED = 0x10  # of Linux and macOS

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


class MemoryDigests:
    """Digests of memory, so that an array in several values is hashed once.

    They are valid only as long as that memory is not written to.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[str, weakref.ref[Any]]] = {}

    def of(self, data: Buffer, owner: Any = None) -> str:
        """Return the digest of ``data``.

        Parameters
        ----------
        data
            The memory; only that of arrays is known by its address.
        owner
            What keeps it from being freed; by default, the array itself.
        """
        view = memoryview(data).cast("B")
        address = _address(view)
        if address in self._known:
            known, keeper = self._known[address]
            if keeper() is not None:
                return known
        found = digest(view)
        self.note(view, found, owner)
        return found

    def note(self, data: Buffer, digest: str, owner: Any = None) -> None:
        """Note the digest of ``data``, which has the ``owner``, as for `of`."""
        view = memoryview(data).cast("B")
        if address := _address(view):
            # Once the owner is gone, other memory may be at the same address.
            self._known[address] = digest, weakref.ref(view.obj if owner is None else owner)

    def clear(self) -> None:
        """Forget all digests."""
        self._known.clear()


def _address(view: memoryview) -> tuple[int, int] | None:
    # Only arrays have a known address; large data that several values share is an array.
    array = getattr(view.obj, "__array_interface__", None)
    return (array["data"][0], view.nbytes) if array else None


def _place(view: memoryview) -> int:
    """Return where memory is: what two objects have there, they share."""
    address = _address(view)
    return address[0] if address else id(view.obj)


def pack(
    pickled: Pickled, digests: MemoryDigests | None = None
) -> tuple[Packed, dict[str, memoryview]]:
    """Return the message for a pickled value, and the blobs that it names, by digest.

    Parameters
    ----------
    pickled
        The pickled value.
    digests
        Digests of memory; new ones are added.
    """
    digests = MemoryDigests() if digests is None else digests
    blobs: dict[str, memoryview] = {}
    shared = _SharedBlobs(blobs)
    memory: dict[str, list[int]] = {}
    room = _MAX_INLINE
    small = _SMALL if len(pickled.buffers) >= _MANY else 0

    def part(data: Buffer) -> bytes | Blob | BlobSlice:
        nonlocal room
        view = memoryview(data).cast("B")
        if view.nbytes <= min(INLINE, room):
            room -= view.nbytes
            return bytes(view)
        if view.nbytes <= small:
            return shared.add(view)
        key = digests.of(view)
        blobs[key] = view
        found: Blob = {"blob": key, "size": view.nbytes}
        places = memory.setdefault(key, [])
        if (place := _place(view)) not in places:
            places.append(place)
        if copy := places.index(place):
            found["copy"] = copy
        return found

    message: Packed = {
        "stream": part(pickled.stream),
        "buffers": [part(buffer) for buffer in pickled.buffers],
    }
    shared.end()
    return message, blobs


class _SharedBlobs:
    """Puts small parts of a value into blobs that they share.

    Parameters
    ----------
    blobs
        The blobs of the value, by digest, to which these are added.
    """

    def __init__(self, blobs: dict[str, memoryview]) -> None:
        self._blobs = blobs
        self._memory = bytearray()
        self._slices: list[BlobSlice] = []

    def add(self, view: memoryview) -> BlobSlice:
        """Return where a part lies, of which the blob is filled in when it is full."""
        self._memory += bytes(-len(self._memory) % _ALIGNED)
        found: BlobSlice = {"blob": "", "size": 0, "at": len(self._memory), "length": view.nbytes}
        self._memory += view
        self._slices.append(found)
        # What a blob ends with depends on that part alone, and not on what lies before it: of a
        # list that begins with something new, the rest is there already.
        is_last = zlib.crc32(view) < 2**32 * view.nbytes // _SHARED
        if is_last or len(self._memory) >= _MAX_SHARED:
            self.end()
        return found

    def end(self) -> None:
        """Let no further part into the last blob."""
        if not self._slices:
            return
        key = digest(self._memory)
        self._blobs[key] = memoryview(self._memory)
        for each in self._slices:
            each["blob"], each["size"] = key, len(self._memory)
        self._memory, self._slices = bytearray(), []


def content(packed: Packed) -> str:
    """Return the digest of a packed value: equal for equal content."""
    hasher = blake3.blake3()
    for part in (packed["stream"], *packed["buffers"]):
        if isinstance(part, dict):
            hasher.update(b"blob" + bytes.fromhex(part["blob"]))
            if copy := part.get("copy"):
                hasher.update(b"copy" + str(copy).encode())
            if "at" in part:
                hasher.update(part["at"].to_bytes(8, "big") + part["length"].to_bytes(8, "big"))
        else:
            hasher.update(b"data" + len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()


def references(packed: Packed) -> dict[str, int]:
    """Return the size of each blob that a packed value names, by digest."""
    parts = (packed["stream"], *packed["buffers"])
    return {part["blob"]: part["size"] for part in parts if isinstance(part, dict)}


def size(packed: Packed) -> int:
    """Return the bytes of a packed value, with those of its blobs."""
    parts = (packed["stream"], *packed["buffers"])
    inline = sum(len(part) for part in parts if isinstance(part, bytes))
    return inline + sum(references(packed).values())


def memory_size(packed: Packed) -> int:
    """Return the bytes of memory that the blobs of a packed value take once it is loaded."""
    parts = (packed["stream"], *packed["buffers"])
    taken = {
        (each["blob"], each.get("copy", 0)): each["size"]
        for each in parts
        if isinstance(each, dict)
    }
    return sum(taken.values())


def parts_in(
    packed: Packed,
    memory: Mapping[str, Buffer],
    again: Callable[[str, Buffer], Buffer] = lambda key, memory: bytearray(memory),
) -> tuple[Buffer, list[Buffer]]:
    """Return the pickle of a packed value, and the memory that it refers to, both writable.

    Parameters
    ----------
    packed
        What `pack` made.
    memory
        That of its blobs, by digest.
    again
        Returns memory of its own with the content of a blob, by its digest and its memory: who
        writes to an array must not write to another one that began with the same content.
    """
    taken: dict[tuple[str, int], Buffer] = {}

    def part(data: bytes | Blob | BlobSlice) -> Buffer:
        if not isinstance(data, dict):
            return bytearray(data)  # writable, as the original array was
        if "at" not in data:
            key, copy = data["blob"], data.get("copy", 0)
            if (key, copy) not in taken:
                taken[key, copy] = again(key, memory[key]) if copy else memory[key]
            return taken[key, copy]
        return memoryview(memory[data["blob"]])[data["at"] : data["at"] + data["length"]]

    return part(packed["stream"]), [part(buffer) for buffer in packed["buffers"]]


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
    sizes = references(packed)

    def mapped(key: str, _: object = None) -> mmap.mmap:
        return map_privately(folder / file_name(key), sizes[key])

    return load(*parts_in(packed, {key: mapped(key) for key in sizes}, mapped), tokens)


def map_privately(path: Path, size: int) -> mmap.mmap:
    """Map a blob such that writes only affect this process; ``OSError`` if it is another user's.

    No file stays open for it, as for Python's own mappings of files: a model has more tensors than
    a process may have open files, mostly 1,024.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        if status.st_size < size:
            raise ValueError(f"{path} has less than {size} bytes")
        memory = mmap.mmap(-1, size, access=mmap.ACCESS_COPY)
        _replace_by_file(memory, file.fileno())
        return memory


def _replace_by_file(memory: mmap.mmap, descriptor: int) -> None:
    """Have anonymous memory be a private copy of a file from now on."""
    start = ctypes.c_char.from_buffer(memory)
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    place = ctypes.addressof(start)
    if _mmap()(place, len(memory), protection, flags, descriptor, 0) != place:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def _mmap() -> Any:
    """Return the function of C, when it is needed: notebooks may be on Windows, which lacks it."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    return function


def file_name(key: str) -> str:
    """Return the file name of a blob; refuse a key that is not hexadecimal."""
    if not key or key.strip("0123456789abcdef"):
        raise ProtocolError(f"{key!r} is not the name of a blob")
    return key
