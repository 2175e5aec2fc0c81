"""Batches of calls: pickled and followed in the user's thread, stopped with Ctrl-C."""

from __future__ import annotations

import queue
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jupyter_sky.api.calls.feeds import CallFeeds, with_feeds
from jupyter_sky.api.calls.needs import find_needs
from jupyter_sky.api.calls.open_streams import OpenStreams
from jupyter_sky.api.calls.pickled_call import pickle_call
from jupyter_sky.api.calls.program import program_words
from jupyter_sky.api.calls.progress import ProgressBar
from jupyter_sky.api.calls.worker import Worker
from jupyter_sky.api.compute import PendingCompute
from jupyter_sky.api.display.wording import reword
from jupyter_sky.api.plugin import Plugin, decorators_of
from jupyter_sky.cluster.calls.batch import Asked, Batch, CallResult, PackedCall
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted, remote_error
from jupyter_sky.cluster.runs.task import RunNotice
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_count, format_some
from jupyter_sky.serialization import blobs
from jupyter_sky.transport.protocol.events import Display, Output

RETRIES = 1
"""How often a call is tried again when its rank is lost, unless the user says otherwise."""

_SLICE = 0.5  # seconds

_LONGEST = 20 * 24 * 3600.0
"""Seconds beyond which a time limit is none: a system waits for at most 24 days at once."""

Event = CallResult | Asked | Output | Display | RunNotice


class Batches:
    """The batches of a pool.

    Parameters
    ----------
    cluster
        The cluster that they run on.
    plugins
        The plugins, whose decorators are applied to each function.
    worker
        How ranks carry calls out.
    write
        Shows what ranks print.
    streams
        Receives what keeps ranks busy until this thread goes on with it.

    Attributes
    ----------
    write, streams
        As above.
    """

    def __init__(
        self,
        cluster: Cluster,
        plugins: Iterable[Plugin],
        worker: Worker,
        write: Callable[[Output | Display | RunNotice], None],
        streams: OpenStreams,
    ) -> None:
        self._cluster = cluster
        self._decorators = decorators_of(plugins)
        self._worker = worker
        self.write = write
        self.streams = streams

    def pack(
        self, calls: Sequence[PendingCompute[Any]], sink: Callable[[Event], object]
    ) -> tuple[Batch, CallFeeds]:
        """Return packed calls, and the feeder of their iterators.

        Raises
        ------
        UsageError
            If one of them cannot be pickled.
        """
        names: set[str] = set()
        modules: set[str] = set()
        digests = blobs.MemoryDigests()
        packed_calls = []
        feeds = {}
        for index, call in enumerate(calls):
            pending, sources = with_feeds(call)
            if sources:
                feeds[index] = sources
            pickled = pickle_call(
                pending, self._cluster, self._decorators, shown=_place(calls, index)
            )
            packed, parts = blobs.pack(pickled, digests)
            names |= pickled.needs
            modules |= pickled.modules
            retries = RETRIES if pending.retries is None else pending.retries
            timeout = pending.timeout
            if timeout is not None and timeout > _LONGEST:
                timeout = None
            packed_calls.append(
                PackedCall(packed, parts, pickled.cells, timeout, retries, bool(sources))
            )
        batch = Batch(
            calls=packed_calls,
            update=find_needs(self._cluster, names, modules, self._cluster.all_ranks),
            serving=self._worker.serving,
            ahead=self._worker.buffer,
            title=_title(calls),
            sink=sink,
            program=program_words(),
        )
        return batch, CallFeeds(self._cluster, feeds, batch.spent)

    def results(self, calls: Sequence[PendingCompute[Any]], ordered: bool) -> Iterator[Any]:
        """Start calls at once, and return an iterator over their results.

        Parameters
        ----------
        calls
            The calls.
        ordered
            Whether results come in the order of the calls, rather than as they finish.
        """
        if not calls:
            return iter(())
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        batch, feeds = self.pack(calls, events.put)
        results = self._follow(calls, batch, feeds, events, ordered)
        # This submits them: from here on, Ctrl-C or any other end of the iterator stops the calls.
        next(results)
        return results

    def submit(self, batch: Batch) -> None:
        """Carry out a batch; its sink receives the answers."""
        self._cluster.calls.submit(batch)

    def withdraw(self, batch: Batch) -> None:
        """Cancel a batch of one call, or stop it if it has begun."""
        self._cluster.calls.withdraw(batch, 0)

    def cancel(self, batch: Batch) -> None:
        """Cancel a batch: no further call begins, and running ones are stopped."""
        self._cluster.calls.cancel(batch)

    def _follow(
        self,
        calls: Sequence[PendingCompute[Any]],
        batch: Batch,
        feeds: CallFeeds,
        events: queue.SimpleQueue[Event],
        ordered: bool,
    ) -> Iterator[Any]:
        done: dict[int, Any] = {}
        given = 0
        bar = ProgressBar(len(calls), batch.title)
        try:
            self._cluster.calls.submit(batch)
            self.streams.add(feeds)
            yield None
            while given < len(calls):
                answer = self._next_answer(events, feeds, bar)
                feeds.on_answer(answer.number)
                value = self.value(answer, calls)
                bar.advance(batch.began)
                if not ordered:
                    given += 1
                    yield value
                    continue
                done[answer.number] = value
                while given in done:
                    given += 1
                    yield done.pop(given - 1)
        except KeyboardInterrupt:
            self._cluster.calls.cancel(batch)
            raise Interrupted(
                f"{format_count(given, 'call')} of {len(calls)} were done; the others were stopped."
            ) from None
        except BaseException as error:
            self._cluster.calls.cancel(batch)
            reword(error)
            raise
        finally:
            feeds.close()
            bar.close()

    def _next_answer(
        self, events: queue.SimpleQueue[Event], feeds: CallFeeds, bar: ProgressBar
    ) -> CallResult:
        while True:
            try:
                event = events.get(timeout=_SLICE)
            except queue.Empty:
                continue  # so that Ctrl-C is noticed
            if isinstance(event, CallResult):
                return event
            if isinstance(event, Asked):
                if left := feeds.on_ask(event):
                    events.put(left)  # after answers that arrived meanwhile
                continue
            bar.clear()
            self.write(event)

    def value(self, answer: CallResult, calls: Sequence[PendingCompute[Any]]) -> Any:
        """Return the result of a call, or raise its error."""
        if answer.trouble:
            raise answer.trouble
        if answer.failure:
            error = remote_error([answer.failure])
            if len(calls) > 1:
                error.index = answer.number
                error.place = f"in call {answer.number + 1} of {_place(calls, answer.number)}"
                error.add_note(error.place)
            raise error
        assert answer.rank is not None and answer.values is not None
        try:
            return self._cluster.calls.load(answer.rank, answer.values)
        except SkyError:
            raise
        except Exception as error:
            raise SkyError(
                f"what {_place(calls, answer.number)} returned came back, but cannot be made here: "
                f"{type(error).__name__}: {error}"
            ) from error


def _title(calls: Sequence[PendingCompute[Any]]) -> str:
    names = dict.fromkeys(call.function.__name__ for call in calls)
    shown = format_some([*names], 3)
    return f"{format_count(len(calls), 'call')} of {shown}" if len(calls) > 1 else f"{shown}()"


def _place(calls: Sequence[PendingCompute[Any]], index: int) -> str:
    """Return what identifies a call for the user: its position and its arguments."""
    pending = calls[index]
    arguments = [_short.repr(value) for value in pending.args]
    arguments += [f"{name}={_short.repr(value)}" for name, value in pending.kwargs.items()]
    shown = f"{pending.function.__name__}({', '.join(arguments)})"
    return f"{len(calls)}: {shown}" if len(calls) > 1 else shown


_short = reprlib.Repr()
