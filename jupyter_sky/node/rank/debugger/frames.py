"""The frames that an error keeps, released in an order that their variables expect."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Code whose frames may go on after an error."""

_RUN_CODE = ("IPython", "jupyter_sky")

_FAR = 3
"""Steps from an error to what keeps it, behind which something of the user's does."""


def release_frames(error: BaseException) -> bool:
    """Let go of the variables of an error's frames, unless something of the user's keeps it.

    A frame that has the error in a variable, and what IPython notes of frames, wait for the
    collector, which takes all that it finds apart in any order. The iterator of a ``DataLoader``
    then finds its queues closed, and waits five seconds for each of its workers.

    Returns
    -------
    bool
        Whether there were any variables: those of the cell itself are the notebook's. Their objects
        may refer to themselves, and wait for the collector.
    """
    errors = _with_causes(error)
    frames: list[FrameType] = []
    _clear([*_around(error)])
    if not any(map(_has_variables, _frames_of(errors))):
        _clear([frame for frame in _frames_of(errors) if _is_around(frame)])
        return False
    if _keep_themselves(errors, frames):
        _clear(frame for frame in frames if not frame.f_code.co_flags & _SUSPENDED)
    return True


def _frames_of(errors: Iterable[BaseException]) -> Iterator[FrameType]:
    for error in errors:
        traceback = error.__traceback__
        while traceback is not None:
            yield traceback.tb_frame
            traceback = traceback.tb_next


def _has_variables(frame: FrameType) -> bool:
    """Return whether a frame is of a function or class of the user's or of a library's."""
    is_of_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    return not _is_around(frame) and bool(is_of_function or frame.f_locals is not frame.f_globals)


def _is_around(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _RUN_CODE


def _around(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of IPython and ours that ran the code, and have the error in a variable.

    With Python 3.13 they are there for as long as those of the error, which refer to them.
    """
    traceback, seen = error.__traceback__, set[FrameType]()
    while traceback is not None:
        frame = traceback.tb_frame.f_back
        while frame is not None and frame not in seen:
            seen.add(frame)
            if _is_around(frame):
                yield frame
            frame = frame.f_back
        traceback = traceback.tb_next


def _clear(frames: Iterable[FrameType]) -> None:
    for frame in frames:
        with contextlib.suppress(RuntimeError):  # it is running
            frame.clear()
            # Before Python 3.13, what was read of them stays until it is read again.
            _ = frame.f_locals


def _keep_themselves(errors: list[BaseException], frames: list[FrameType]) -> bool:
    """Return whether nothing refers to errors but their own frames, and what only these have.

    ``frames`` is filled with them.
    """
    newest: list[Any] = [*errors]
    for error in errors:
        traceback = error.__traceback__
        while traceback is not None:
            newest.append(traceback)
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
    seen = {id(each) for each in (*newest, *frames, errors, newest, frames)}
    for _ in range(_FAR):
        asked = (*newest,)  # which is among them since Python 3.13
        seen.add(id(asked))
        holders = gc.get_referrers(*asked)
        newest = [each for each in holders if id(each) not in seen]
        if not newest:
            # What was there before the rank was forked is frozen, and so not among the referrers.
            names = vars(sys.modules["__main__"])
            return not any(id(value) in seen for value in list(names.values()))
        seen.update(id(each) for each in (*newest, newest))
        del asked, holders
    return False


def _with_causes(error: BaseException) -> list[BaseException]:
    """Return an error, and those during whose handling it was raised."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and not any(each is other for other in found):
            found.append(each)
            waiting += [each.__cause__, each.__context__]
    return found
