"""What is mapped from a file: a receiver that sees the file maps it too, others get a copy.

These are arrays (`numpy.memmap`) and tables of Hugging Face's datasets. The file is not read then,
however large it is. What either side writes to such an array the other one sees, and the file has
it.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from jupyter_sky.errors import UsageError

_is_seen: ContextVar[bool | None] = ContextVar("files_are_seen", default=None)
"""``None`` if nobody has said it: then arrays are copied, and tables refer to their file."""


@contextmanager
def seen_by_receiver(is_seen: bool | None) -> Iterator[None]:
    """Within this context, what is pickled is for a receiver that sees the files here, or not."""
    token = _is_seen.set(is_seen)
    try:
        yield
    finally:
        _is_seen.reset(token)


def copied_unless_seen(is_seen: bool) -> AbstractContextManager[None]:
    """As `seen_by_receiver`, for values that do not stay one with those of the receiver.

    Arrays are always copied then.
    """
    return seen_by_receiver(None if is_seen else False)


def reduce(array: Any) -> Any:
    """Return what ``array.__reduce__`` should, for a part of a file that the receiver sees.

    Parameters
    ----------
    array
        Any object of numpy's.

    Returns
    -------
    tuple
        As ``__reduce__`` returns; ``NotImplemented`` for others.
    """
    if type(array).__name__ != "memmap" or not _is_seen.get():
        return NotImplemented
    if array._mmap is None or array.mode == "c" or not array.filename:
        return NotImplemented  # the result of a computation, or a copy that is private already
    if not array.size or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return NotImplemented
    with suppress(OSError):
        path = Path(array.filename).absolute()
        inode = path.stat().st_ino
        # It may be a part of what was mapped, and that begins at a page of the file.
        mapped = sys.modules["numpy"].frombuffer(array._mmap, "u1")
        page = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        offset = page + array.ctypes.data - mapped.ctypes.data
        mode = "r+" if array.flags.writeable else "r"
        order = "C" if array.flags.c_contiguous else "F"
        return _map, (str(path), inode, array.dtype, mode, offset, array.shape, order)
    return NotImplemented


def reduce_table(table: Any) -> Any:
    """Return what ``table.__reduce__`` should, for a receiver that does not see its file.

    Parameters
    ----------
    table
        Any object of the module `datasets.table`.

    Returns
    -------
    tuple
        As ``__reduce__`` returns; ``NotImplemented`` for others.
    """
    if type(table).__name__ != "MemoryMappedTable" or _is_seen.get() is not False:
        return NotImplemented
    return sys.modules["datasets.table"].InMemoryTable, (table.table,)


def _map(path: str, inode: int, *how: Any) -> Any:
    import numpy

    if not Path(path).exists() or Path(path).stat().st_ino != inode:
        raise UsageError(f"{path}, of which an array is a part, is not there: send a copy of it.")
    return numpy.memmap(path, *how)
