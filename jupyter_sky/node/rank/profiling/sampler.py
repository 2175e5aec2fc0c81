"""Samples the stacks of a rank, in a thread of its own, and reports them.

Samples are sent to the agent every second: if the rank ends, or C code does not release the GIL,
the agent has the earlier samples, and knows since when there are none.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FrameType

from jupyter_sky.node.rank.inspection import stacks
from jupyter_sky.node.rank.inspection.collectives import CollectiveRecords
from jupyter_sky.node.rank.profiling.activities import MainThread, by_calls
from jupyter_sky.transport.protocol.inspection import SeenFrame
from jupyter_sky.transport.protocol.profiling import Activity, SampleCommand, Sampled, SampledStack

TELL_EVERY = 1.0
"""Seconds between two messages."""

OUR_THREADS = "sky-"
"""What the names of our own threads begin with."""

_MOST_STACKS = 400  # most different stacks in a message
_MOST_THREADS = 8  # most other threads to sample
_INNERMOST, _OUTERMOST = 40, 20  # most calls to keep of a stack

Send = Callable[[Sampled], object]
_Key = tuple[str, Activity | None, tuple[tuple[int, int], ...]]


class Sampler:
    """Samples the stacks of this process on request.

    Parameters
    ----------
    recorded
        The collectives that torch has recorded.
    """

    def __init__(self, recorded: CollectiveRecords) -> None:
        self._recorded = recorded
        self._over = threading.Event()

    def begin(self, command: SampleCommand, send: Send) -> None:
        """Begin to sample, ending earlier sampling; with 0 seconds, only end it."""
        self._over.set()
        if command["seconds"] <= 0:
            return
        self._over = threading.Event()
        threading.Thread(
            target=_Sampling(command, self._recorded, send, self._over).run,
            name=f"{OUR_THREADS}sampler",
            daemon=True,
        ).start()


class _Sampling:
    """Sampling from one request."""

    def __init__(
        self, command: SampleCommand, recorded: CollectiveRecords, send: Send, over: threading.Event
    ) -> None:
        self._number = command["number"]
        self._seconds = command["seconds"]
        self._interval = 1 / command["rate"]
        self._send = send
        self._over = over
        self._main = MainThread(recorded)
        self._places = _Places()
        self._asked = self._came = self._dropped = 0
        self._found: dict[_Key, int] = {}

    def run(self) -> None:
        """Sample until the end."""
        begun = time.monotonic()
        end, tell = begun + self._seconds, begun + TELL_EVERY
        due = begun + self._interval
        try:
            while due <= end and not self._over.wait(max(0.0, due - time.monotonic())):
                now = min(time.monotonic(), end)
                passed = 1 + max(0, int((now - due) / self._interval))
                self._asked += passed
                due += passed * self._interval
                self._look()
                if now >= tell:
                    self._tell(over=False)
                    tell = now + TELL_EVERY
        finally:
            self._main.close()
            # The agent may be gone, and the rank will be soon.
            with contextlib.suppress(OSError):
                self._tell(over=True)

    def _look(self) -> None:
        self._came += 1
        is_running = self._main.was_running()
        frames = sys._current_frames()
        main = threading.main_thread().ident or 0
        key = self._places.stack(frames.get(main)) or self._places.awaiting(frames.get(main))
        activity = self._activity(key, is_running)
        has_own = activity != "outside"
        others = self._others(frames, main)
        if has_own or not others:
            self._add("", activity, key)
        for at, (name, stack) in enumerate(others):
            # Calls that are sent to a rank one by one may run in threads, beside an idle main
            # thread.
            is_first = not has_own and not at
            files = self._places.files(stack)
            self._add(name, (by_calls(files) or "compute") if is_first else "beside", stack)

    def _activity(self, key: tuple[tuple[int, int], ...], is_running: bool) -> Activity:
        if not key:
            return "outside"
        files = self._places.files(key)
        return by_calls(files) or self._main.activity(hash(key[0]), files[0], is_running)

    def _others(
        self, frames: Mapping[int, FrameType], main: int
    ) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
        """Return the stacks of other threads that run the user's code."""
        found = []
        for thread in threading.enumerate():
            if thread.ident in (None, main) or thread.name.startswith(OUR_THREADS):
                continue
            stack = self._places.stack(frames.get(thread.ident or 0))
            if stack:
                found.append((thread.name[:80], stack))
            if len(found) == _MOST_THREADS:
                break
        return found

    def _add(self, thread: str, activity: Activity, stack: tuple[tuple[int, int], ...]) -> None:
        key = (thread, activity, stack)
        if key in self._found or len(self._found) < _MOST_STACKS:
            self._found[key] = self._found.get(key, 0) + 1
        else:
            self._dropped += 1

    def _tell(self, *, over: bool) -> None:
        frames: list[SeenFrame] = []
        positions: dict[tuple[int, int], int] = {}
        found: list[SampledStack] = []
        for (thread, activity, stack), count in self._found.items():
            for place in stack:
                if place not in positions:
                    positions[place] = len(frames)
                    frames.append(self._places.seen(place))
            found.append(
                {
                    "count": count,
                    "activity": activity or "compute",
                    "thread": thread,
                    "frames": [positions[place] for place in stack],
                }
            )
        message: Sampled = {
            "sampled": self._number,
            "over": over,
            "asked": self._asked,
            "came": self._came,
            "frames": frames,
            "stacks": found,
            "dropped": self._dropped,
        }
        self._found = {}
        self._places.forget()
        self._asked = self._came = self._dropped = 0
        self._send(message)


class _Places:
    """A cache of lines of code, by the id of the code object and the line."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}
        self._own: dict[int, bool] = {}
        self._wrappers: dict[int, bool] = {}

    def forget(self) -> None:
        """Clear the cache, so that it does not grow."""
        self._codes, self._own, self._wrappers = {}, {}, {}

    def stack(self, frame: FrameType | None) -> tuple[tuple[int, int], ...]:
        """Return a stack, the innermost call first, down to the user's first line."""
        return self._stack(stacks.with_callers(frame))

    def awaiting(self, frame: FrameType | None) -> tuple[tuple[int, int], ...]:
        """Return where a cell awaits something, if its event loop is on a stack instead of it."""
        return self._stack(stacks.awaiting(frame))

    def _stack(self, frames: Iterable[FrameType]) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        last = 0  # after the user's outermost line
        for frame in frames:
            code = frame.f_code
            number = id(code)
            if number not in self._codes:
                self._codes[number] = code
                self._own[number] = stacks.is_own(code.co_filename)
                self._wrappers[number] = stacks.is_wrapper(code.co_filename)
            if not self._wrappers[number]:
                found.append((number, frame.f_lineno or 0))
                if self._own[number]:
                    last = len(found)
        del found[last:]
        if len(found) > _INNERMOST + _OUTERMOST:
            del found[_INNERMOST:-_OUTERMOST]
        return tuple(found)

    def files(self, stack: tuple[tuple[int, int], ...]) -> list[str]:
        """Return the files of a stack."""
        return [self._codes[number].co_filename for number, _ in stack]

    def seen(self, place: tuple[int, int]) -> SeenFrame:
        """Return a line as the user knows it."""
        code = self._codes[place[0]]
        return stacks.seen(code.co_filename, place[1], code)
