"""Stacks for users: with the names of cells and files, without our own frames.

The side thread of a rank reads the frames of the others. If it cannot run, because a call into C
does not release the GIL, the agent sends a signal on which `faulthandler` writes a stack to a file,
in C only. It writes the stack of the thread that gets the signal, the main thread, and no other: if
the rank was merely slow, its threads continue, and reading frames that vanish meanwhile would crash
the process. The agent reads the file; the names of cells are at its beginning. It sends the signal
to a main thread that is seen to be in one call only, for the same reason.
"""

from __future__ import annotations

import ast
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
from asyncio import BaseEventLoop, Task
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from jupyter_sky.node.process_stat import stat_fields
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
_DUMPED = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')
_OF_TORCH = f"torch{os.sep}distributed{os.sep}"
_WRAPPERS = ("c10d_logger.py",)  # around each call of torch.distributed
_SHELLS = ("/IPython/core/interactiveshell.py", "/jupyter_sky/node/rank/ipython/shell.py")
"""What carries out lines like ``!cmd`` and ``%time``, for which users know no function."""

_TYPED = {"system": "!", "getoutput": "!", "run_line_magic": "%", "run_cell_magic": "%%"}
_CALL_OF_SHELL = re.compile(rf"get_ipython\(\)\.({'|'.join(_TYPED)})\((.*)\)$")
_RUNS_LOOP = BaseEventLoop.run_until_complete.__code__
_KNOWN_CLASSES = {"_BaseDataLoaderIter": "DataLoader"}
"""What users call classes of libraries that they never see."""


@dataclass(frozen=True)
class MainThreadState:
    """What the system tells about the main thread of a process.

    Attributes
    ----------
    is_asleep
        Whether it waits, in a call of the system.
    used
        Seconds for which it has had a processor so far.
    """

    is_asleep: bool
    used: float

    @classmethod
    def of(cls, pid: int | None) -> MainThreadState:
        """Return what is known of a process; of one that is gone, nothing."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat_fields(f"/proc/{pid}/task/{pid}")
            ticks = int(fields[11]) + int(fields[12])
            return cls(fields[0] in ("S", "D"), ticks / os.sysconf("SC_CLK_TCK"))
        return cls(False, 0.0)


class StackFile:
    """The rank's side of the file to which its stack is written on a signal.

    Parameters
    ----------
    descriptor
        The file, which the agent has open, too.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._remembered = 0
        self._known: Mapping[str, str] = {}
        # Stacks are appended to what the agent has left there.
        stacks = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_APPEND)
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=False, chain=False)
        # From now on the agent may send the signal, which would have ended the process before.
        os.ftruncate(descriptor, NAMES_SIZE)

    def write_names(self) -> None:
        """Write the names of cells, if they have changed since the last time."""
        remembered = cell_sources.remembered
        if remembered == self._remembered:
            return  # this is called ten times a second
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
    """Return the stack of the main thread, or of another thread that runs the user's code.

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
    if awaits := _down_to_cell(map(_of_frame, awaiting(current.get(main)))):
        return awaits
    others = [ident for ident in current if ident not in (main, threading.get_ident())]
    for ident in others[:_MOST_THREADS]:
        stack = _frames(current[ident])
        if any(frame["own"] for frame in stack):
            return stack
    return found


def are_others_busy() -> bool:
    """Return whether a thread beside the main one may begin collectives of its own.

    So does one that is in the user's code, or in torch.distributed, as for a checkpoint that is
    saved in the background.
    """
    known = (threading.main_thread().ident, threading.get_ident())
    others = [frame for ident, frame in sys._current_frames().items() if ident not in known]
    files = {each.f_code.co_filename for frame in others for each in with_callers(frame)}
    return any(_OF_TORCH in file or is_own(file) for file in files)


def with_callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that have called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _frames(frame: FrameType | None) -> list[SeenFrame]:
    return _down_to_cell(map(_of_frame, with_callers(frame)))


def _of_frame(frame: FrameType) -> tuple[str, SeenFrame]:
    file = frame.f_code.co_filename
    return file, seen(file, frame.f_lineno or 0, frame.f_code)


def awaiting(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of a cell that awaits something, the innermost first.

    Meanwhile its event loop is on the stack instead of it, whose innermost frame is given.
    """
    loop = next((each for each in with_callers(frame) if each.f_code is _RUNS_LOOP), None)
    task = loop.f_locals.get("future") if loop else None
    coroutine: Any = task.get_coro() if isinstance(task, Task) else None
    found: list[FrameType] = []
    while (suspended := getattr(coroutine, "cr_frame", None)) is not None:
        found.insert(0, suspended)
        coroutine = coroutine.cr_await
    return found


def seen(file: str, line: int, code: CodeType) -> SeenFrame:
    """Return a line of code as the user knows it."""
    return _seen(file, line, getattr(code, "co_qualname", code.co_name), cell_sources.titles)


def is_own(file: str) -> bool:
    """Return whether a file or cell is the user's."""
    return place_of(file, cell_sources.titles)[1]


def is_wrapper(file: str) -> bool:
    """Return whether calls in a file are of no interest to the user."""
    return file.endswith(_WRAPPERS)


def parse_dump(data: bytes) -> list[SeenFrame]:
    """Return the main thread's stack from a file of stacks; see `StackFile`."""
    titles = titles_in(data)
    lines = data[NAMES_SIZE:].decode(errors="replace").splitlines()
    return _down_to_cell(
        (match[1], _seen(match[1], int(match[2]) if match[2].isdigit() else 0, match[3], titles))
        for match in map(_DUMPED.match, lines)
        if match
    )


def titles_in(data: bytes) -> Mapping[str, str]:
    """Return the titles of cells from a file of stacks, by the file name of their code."""
    with contextlib.suppress(ValueError):
        return dict(json.loads(data[:NAMES_SIZE].rstrip(b"\0") or b"{}"))
    return {}


def is_whole(data: bytes) -> bool:
    """Return whether a file of stacks has the complete stack of the main thread."""
    return b"in _become_rank\n" in data[NAMES_SIZE:] or b"  ...\n" in data[NAMES_SIZE:]


def _seen(file: str, line: int, function: str, titles: Mapping[str, str]) -> SeenFrame:
    place, is_own = place_of(file, titles)
    name = function.replace("<locals>.", "")
    head, dot, rest = name.partition(".")
    name = _KNOWN_CLASSES.get(head, head) + dot + rest
    text = _as_typed(linecache.getline(file, line).strip())[:_LONGEST_LINE] if is_own else ""
    return {
        "place": place,
        "line": line,
        "function": "" if name == "<module>" else name,
        "text": text,
        "own": is_own,
    }


def _as_typed(line: str) -> str:
    """Return a line as the user has typed it, where IPython has made a call of ``!cmd`` or such."""
    if (found := _CALL_OF_SHELL.search(line)) is None:
        return line
    try:
        words = ast.literal_eval(f"({found[2]},)")
        return line[: found.start()] + _TYPED[found[1]] + " ".join(words[:2]).rstrip()
    except (SyntaxError, ValueError, TypeError):  # the user's own call
        return line


def place_of(file: str, titles: Mapping[str, str]) -> tuple[str, bool]:
    """Return the user's name for a file, and whether the file is the user's."""
    if file in titles:
        number = cell_sources.number(titles[file])
        name = cell_sources.label(titles[file])[1] if number is None else f"cell [{number}]"
        return name or "the cell", True
    if file.startswith("<ipython-input"):
        return "the cell", True
    return Path(file).name, not (file.startswith(("<", *_libraries())))


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of libraries, which users import but do not edit."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    found = map(str, sys.path)  # users also add `pathlib` paths
    folders |= {path for path in found if path.endswith(("site-packages", "dist-packages"))}
    folders |= {os.path.realpath(folder) for folder in folders}
    return tuple(f"{folder}{os.sep}" for folder in [*folders, _PACKAGE])


def _down_to_cell(frames: Iterable[tuple[str, SeenFrame]]) -> list[SeenFrame]:
    """Return a stack, given with its files, without the frames that called the user's first line.

    Those that carry out a line like ``!cmd`` are left out, too.
    """
    stack = [each for each in frames if not is_wrapper(each[0])]
    while stack and not stack[-1][1]["own"]:
        stack.pop()
    own = next((at for at, (_, frame) in enumerate(stack) if frame["own"]), 0)
    if own and stack[own - 1][0].endswith(_SHELLS):
        del stack[:own]
    found = [frame for _, frame in stack]
    return found if len(found) <= _MOST_FRAMES else [*found[: _MOST_FRAMES - 10], *found[-10:]]
