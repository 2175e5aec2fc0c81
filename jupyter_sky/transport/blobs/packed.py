"""Pickled values as parts of messages."""

from __future__ import annotations

from typing import NotRequired, TypedDict, final


@final
class Blob(TypedDict):
    """A large part of a packed value that is sent separately.

    Attributes
    ----------
    blob, size
        Its digest, and its size in bytes.
    copy
        Which of several parts of this content it is, that each have memory of their own; none for
        the first.
    """

    blob: str
    size: int
    copy: NotRequired[int]


@final
class BlobSlice(TypedDict):
    """A small part of a packed value, which lies in a blob with others.

    Attributes
    ----------
    blob, size
        As of a `Blob`: those of all of it.
    at
        Where it begins in the blob, in bytes.
    length
        Its own size in bytes.
    """

    blob: str
    size: int
    at: int
    length: int


class PackedTokens(TypedDict):
    """The arguments of `object_tokens.Tokens`."""

    first: int
    known: dict[int, int]


class Packed(TypedDict):
    """A pickled value.

    Attributes
    ----------
    stream
        The pickle.
    buffers
        The contiguous memory that it refers to, in order.
    tokens
        The tokens of objects in it that other values may share.
    cells
        Source and title of the cells that define functions in it, by the file name of their code.
    """

    stream: bytes | Blob | BlobSlice
    buffers: list[bytes | Blob | BlobSlice]
    tokens: NotRequired[PackedTokens]
    cells: NotRequired[dict[str, tuple[str, str]]]
