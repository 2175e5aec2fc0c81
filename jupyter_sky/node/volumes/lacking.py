"""Files whose content could not be fetched, while programs may have them open.

Such a program finds the file empty. If it was opened to be written, what the program writes has to
stay: so the file itself remains in its place, and gets its size and its lease back only once nobody
has it open and nobody has written it.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from jupyter_sky.node.volumes.entry import FileEntry

if TYPE_CHECKING:
    from jupyter_sky.node.volumes.tree import Tree


def empty(tree: Tree, entry: FileEntry, may_replace: bool) -> None:
    """Release programs that wait for a file, which they find empty.

    Parameters
    ----------
    tree, entry
        The file, which is not on this node.
    may_replace
        Whether what a program writes into it may take the place of what the bucket has.
    """
    with tree.lock:
        assert entry.fd is not None
        os.ftruncate(entry.fd, 0)
        entry.is_lacking, entry.may_replace = True, may_replace
        tree.let_in(entry)


def take_back(tree: Tree, entry: FileEntry) -> bool:
    """Give a file its size and lease back; return ``False`` while others have it open.

    If it was written or removed meanwhile, it stays as it is.
    """
    with tree.lock, contextlib.suppress(OSError):
        if not is_waiting(tree, entry):
            return True
        entry.is_lacking = not tree.take_content(entry)
        return not entry.is_lacking
    return True


def is_waiting(tree: Tree, entry: FileEntry) -> bool:
    """Return whether a file lacks its content, and nobody has written it since."""
    is_there = tree.entries.get(entry.name) is entry and entry.fd is None
    return is_there and entry.is_lacking and tree.is_as_was(entry)


def is_mixed(tree: Tree, entry: FileEntry) -> bool:
    """Return whether a program has written into a file without its former content."""
    if not entry.is_lacking or entry.may_replace or entry.mark is None:
        return False
    with contextlib.suppress(OSError):
        return os.lstat(tree.path / entry.name).st_ino == entry.mark[0]
    return False
