"""Stacks as a user reads them: cells and files by their names, without our own frames.

The side thread of a rank reads the frames of the others. Where it cannot run, because a call into
C keeps the interpreter to itself, the system tells: on a signal `faulthandler` writes a stack to a
file, from C alone. It writes that of the thread which gets the signal, the main thread, and no
other: a rank that was only slow runs on, and reading frames that go meanwhile ends its process.
The file is the agent's, which reads it; what a cell is called stands in front.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import linecache
import os
import re
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType

from jupyter_sky.serialization import cell_sources
from jupyter_sky.transport.protocol.inspection import SeenFrame

STACKS_SIGNAL = signal.SIGRTMIN + 5
"""On which a rank writes its stacks."""

NAMES_SIZE = 64 * 1024
"""Bytes at the beginning of the file of stacks that are for the names of cells."""

_MOST_FRAMES = 40
_MOST_THREADS = 4  # in which calls run beside the main thread
_LONGEST_LINE = 120  # characters
_PACKAGE = str(Path(__file__).resolve().parents[3])
_TITLE = re.compile(r"In\[(\d+)\]")
_DUMPED = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')
_WRAPPERS = ("c10d_logger.py",)  # around each call of torch.distributed
_KNOWN_CLASSES = {"_BaseDataLoaderIter": "DataLoader"}
"""What users call classes of libraries that they never see."""


class StackFile:
    """The rank's end of the file that its stack is written to on a signal.

    Parameters
    ----------
    descriptor
        The file, which the agent has open too.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._remembered = 0
        self._known: Mapping[str, str] = {}
        # What it writes stands behind what the agent has left there.
        stacks = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_APPEND)
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=False, chain=False)
        # From now on the agent may send the signal, which before would have ended the process.
        os.ftruncate(descriptor, NAMES_SIZE)

    def write_names(self) -> None:
        """Write what cells are called, if there are others than the last time."""
        remembered = cell_sources.remembered
        if remembered == self._remembered:
            return  # it is asked ten times a second
        newest = dict(list(cell_sources.titles.items())[-200:])
        self._remembered = remembered
        if newest == self._known:
            return
        self._known = newest
        text = json.dumps(newest).encode()
        if len(text) < NAMES_SIZE:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, text.ljust(NAMES_SIZE, b"\0"), 0)


def frames_of_user(at: FrameType | None = None) -> list[SeenFrame]:
    """Return the stack of the main thread, or of a thread beside it that runs the user's code.

    Parameters
    ----------
    at
        The innermost frame of the stack to return instead.
    """
    if at is not None:
        return _frames(at)
    current = sys._current_frames()
    main = threading.main_thread().ident or 0
    found = _frames(current.get(main))
    if any(frame["own"] for frame in found):
        return found
    others = [ident for ident in current if ident not in (main, threading.get_ident())]
    for ident in others[:_MOST_THREADS]:
        stack = _frames(current[ident])
        if any(frame["own"] for frame in stack):
            return stack
    return found


def _frames(frame: FrameType | None) -> list[SeenFrame]:
    found: list[SeenFrame] = []
    while frame is not None:
        found.append(seen(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code))
        frame = frame.f_back
    return _down_to_cell(found)


def seen(file: str, line: int, code: CodeType) -> SeenFrame:
    """Return a line of code as a user knows it."""
    return _seen(file, line, getattr(code, "co_qualname", code.co_name), cell_sources.titles)


def is_own(file: str) -> bool:
    """Return whether a file, or cell, is the user's."""
    return place_of(file, cell_sources.titles)[1]


def is_wrapper(file: str) -> bool:
    """Return whether the calls in a file say nothing to a user."""
    return file.endswith(_WRAPPERS)


def parse_dump(data: bytes) -> list[SeenFrame]:
    """Return the stack of the main thread from a file of stacks; see `StackFile`."""
    titles: Mapping[str, str] = {}
    with contextlib.suppress(ValueError):
        titles = json.loads(data[:NAMES_SIZE].rstrip(b"\0") or b"{}")
    lines = data[NAMES_SIZE:].decode(errors="replace").splitlines()
    return _down_to_cell(
        _seen(match[1], int(match[2]) if match[2].isdigit() else 0, match[3], titles)
        for match in map(_DUMPED.match, lines)
        if match
    )


def is_whole(data: bytes) -> bool:
    """Return whether a file of stacks has that of the main thread to its end."""
    return b"in _become_rank\n" in data[NAMES_SIZE:] or b"  ...\n" in data[NAMES_SIZE:]


def _seen(file: str, line: int, function: str, titles: Mapping[str, str]) -> SeenFrame:
    place, is_own = place_of(file, titles)
    name = function.replace("<locals>.", "")
    head, dot, rest = name.partition(".")
    name = _KNOWN_CLASSES.get(head, head) + dot + rest
    text = linecache.getline(file, line).strip()[:_LONGEST_LINE] if is_own else ""
    return {
        "place": place,
        "line": line,
        "function": "" if name == "<module>" else name,
        "text": text,
        "own": is_own,
    }


def place_of(file: str, titles: Mapping[str, str]) -> tuple[str, bool]:
    """Return what a user calls a file, and whether it is the user's."""
    if file in titles:
        match = _TITLE.fullmatch(titles[file])
        return (f"cell [{match[1]}]" if match else titles[file] or "the cell"), True
    if file.startswith("<ipython-input"):
        return "the cell", True
    return Path(file).name, not (file.startswith(("<", *_libraries())))


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of what users import and do not edit."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    found = map(str, sys.path)  # users add paths of `pathlib`, too
    folders |= {path for path in found if path.endswith(("site-packages", "dist-packages"))}
    folders |= {os.path.realpath(folder) for folder in folders}
    return tuple(f"{folder}{os.sep}" for folder in [*folders, _PACKAGE])


def _down_to_cell(frames: Iterable[SeenFrame]) -> list[SeenFrame]:
    """Return a stack without what is around the user's first line."""
    found = list(frames)
    while found and not found[-1]["own"]:
        found.pop()
    found = [frame for frame in found if frame["place"] not in _WRAPPERS]
    return found if len(found) <= _MOST_FRAMES else [*found[: _MOST_FRAMES - 10], *found[-10:]]
