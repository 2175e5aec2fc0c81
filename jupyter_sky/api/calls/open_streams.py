"""The streams of a pool that are not over: its ranks are busy with them."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import FrameType

from jupyter_sky.api.calls.feeds import CallFeeds, Feeder
from jupyter_sky.api.calls.streams import Stream
from jupyter_sky.errors import UsageError

_KeepsRanks = Stream | Feeder | CallFeeds


class OpenStreams:
    """What keeps ranks busy until the thread that has begun it goes on with it.

    These are streams, iterators that are fed to ranks, and calls that are fed. They are not held:
    one that nobody else refers to is over.
    """

    def __init__(self) -> None:
        self._begun: weakref.WeakSet[_KeepsRanks] = weakref.WeakSet()

    def add(self, stream: _KeepsRanks) -> None:
        """Add one that begins."""
        self._begun.add(stream)

    def refuse_nested(self) -> None:
        """Refuse a call in a loop over a stream, which keeps the ranks busy until its end.

        The same holds inside an iterator that is fed to ranks, and in a loop over the results of
        calls that are fed. A stream that only an error still holds is closed instead.

        Raises
        ------
        UsageError
            If a stream was begun in this thread and is not finished.
        """
        if not self._begun_here():
            return
        gc.collect()  # an error and the frames that it has ended often refer to each other
        for reference in self._begun_here():
            _close_if_left(reference)
        if self._begun_here():
            raise UsageError(
                "a stream of this pool is not over, and its ranks are busy with it: read it to its "
                "end, or close() it, before the next call."
            )

    def _begun_here(self) -> list[weakref.ref[_KeepsRanks]]:
        """Return what was begun in this thread and keeps ranks busy, without holding it."""
        here = threading.get_ident()
        mine = (each for each in list(self._begun) if each.thread == here)
        return [weakref.ref(each) for each in mine if each.keeps_ranks]


def _close_if_left(reference: weakref.ref[_KeepsRanks]) -> None:
    """Close a stream if only frames that an error has ended refer to it.

    IPython keeps the last error for `%debug`, and with it the variables of these frames.
    """
    stream, nothing_else = reference(), object()
    if not isinstance(stream, Stream):
        return
    holders = gc.get_referrers(stream)  # frames that still run are not among them
    by_others = sys.getrefcount(stream) - sys.getrefcount(nothing_else)
    frames = [each for each in holders if isinstance(each, FrameType)]
    variables = [each for each in holders if any(each is frame.f_locals for frame in frames)]
    if frames and by_others == len(frames) + len(variables):
        stream.close()
