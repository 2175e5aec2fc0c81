"""Calls that talk while they run: what they yield arrives at once, iterators are fed to them.

Neither side runs ahead: a rank waits until what it sent was taken here, and an iterator of the
notebook's is asked for items as the ranks use them up.
"""

from __future__ import annotations

import collections.abc
import gc
import inspect
import threading
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from jupyter_sky.api.call import Fed
from jupyter_sky.api.compute import PendingCompute
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.talk import Message
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.transport.protocol.events import Display, Output, Told
from jupyter_sky.transport.protocol.messages import NameGroup


def yields(pending: PendingCompute[Any]) -> bool:
    """Return whether the function of a call is a generator."""
    function = pending.function.local_function
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def with_feeds(
    pending: PendingCompute[Any],
) -> tuple[PendingCompute[Any], list[Iterator[Any]]]:
    """Return a call in which numbers stand for its iterators, and those iterators."""
    feeds: list[Iterator[Any]] = []
    names = _iterator_parameters(pending.function.local_function)

    def argument(name: object, value: Any) -> Any:
        is_wanted = name in names and isinstance(value, collections.abc.Iterable)
        if not is_wanted and not isinstance(value, collections.abc.Iterator):
            return value
        feeds.append(iter(value))
        return Fed(len(feeds) - 1)

    args = [argument(at, value) for at, value in enumerate(pending.args)]
    kwargs = {name: argument(name, value) for name, value in pending.kwargs.items()}
    if not feeds:
        return pending, feeds
    return PendingCompute(pending.function, tuple(args), kwargs, pending.timeout), feeds


class Feeder:
    """Gives the items of iterators to the ranks that ask for them; each rank gets all items.

    Parameters
    ----------
    cluster
        The cluster.
    handle
        The run.
    feeds
        The iterators.
    ranks
        The ranks of the run.
    """

    def __init__(
        self,
        cluster: Cluster,
        handle: RunHandle,
        feeds: Sequence[Iterator[Any]],
        ranks: Sequence[int],
    ) -> None:
        self._cluster = cluster
        self._handle = handle
        self._feeds = [_Feed(feed, ranks) for feed in feeds]
        self._ranks = tuple(ranks)
        self._updates: list[NamespaceUpdate] = []
        self._is_over = False
        self.thread = threading.get_ident()

    @property
    def keeps_ranks(self) -> bool:
        """Whether the ranks are busy with the run until they are fed."""
        return not self._is_over and not self._handle.finished

    def on_ask(self, event: Told) -> None:
        """Give a rank the items that it asks for, as far as the others are not too far behind."""
        if event.kind != "ask" or not 0 <= event.number < len(self._feeds):
            return
        feed = self._feeds[event.number]
        feed.asked[event.rank] += event.count
        while feed.is_next_wanted():
            try:
                item = next(feed.items)
            except StopIteration:
                feed.is_over = True
                for rank in self._ranks:
                    self._handle.tell(rank, "items_end", event.number)
                return
            message = self._pack(item, feed.position)
            if message.blobs:
                gc.collect(0)  # what has pickled the item refers to itself, and so holds on to it
            feed.position += 1
            for rank in self._ranks:
                feed.asked[rank] -= 1
                self._handle.tell(rank, "item", event.number, message)

    def close(self) -> None:
        """Report that what was sent has arrived, as far as the ranks are there."""
        self._is_over = True
        for update in self._updates:
            for rank in self._ranks:
                self._cluster.sync.ran(update, rank, {}, well=True)

    def _pack(self, item: Any, position: int) -> Message:
        pickled = pickling.dump((position, item), "an item of an iterator")
        packed, parts = blobs.pack(pickled)
        names: list[NameGroup] = []
        if pickled.needs:
            sync = self._cluster.sync
            update = sync.update(pickled.needs, pickling.main_namespace(), self._ranks, limit=None)
            sync.sent(update)
            self._updates.append(update)
            names, parts = cast("list[NameGroup]", update.groups), {**parts, **update.blobs}
        return Message(packed, parts, pickled.cells, names)


class _Feed:
    """An iterator of the notebook's, and how many more items each rank has asked for."""

    def __init__(self, items: Iterator[Any], ranks: Sequence[int]) -> None:
        self.items = items
        self.asked = dict.fromkeys(ranks, 0)
        self.position = 0
        self.is_over = False

    def is_next_wanted(self) -> bool:
        """Return whether every rank has asked for the next item."""
        return not self.is_over and all(count > 0 for count in self.asked.values())


class Stream(Iterator[Any]):
    """The values that ranks yield, as they yield them.

    It can be left before its end, in a ``with`` block, with ``close()`` or by a loop that breaks:
    the generators on the ranks are closed then.

    Parameters
    ----------
    handle
        The run.
    feeder
        Gives the ranks what they ask for.
    load
        Returns the value that a rank has packed.
    write
        Shows what ranks print.
    with_ranks
        Whether each value comes with its rank.
    timeout
        Seconds that it may take in all.
    """

    def __init__(
        self,
        handle: RunHandle,
        feeder: Feeder,
        load: Callable[[int, Any], Any],
        write: Callable[[Output | Display], None],
        with_ranks: bool,
        timeout: float | None,
    ) -> None:
        self._handle = handle
        self._feeder = feeder
        self._load = load
        self._write = write
        self._with_ranks = with_ranks
        self._is_over = False
        self._timeout = timeout
        self._until = time.monotonic() + timeout if timeout else None
        self.thread = threading.get_ident()
        self._events = handle.events()
        handle.begin()

    @property
    def keeps_ranks(self) -> bool:
        """Whether the ranks are busy with it until it is read."""
        return not self._is_over and not self._handle.finished

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            for event in self._events:
                if self._handle.failed and self._with_ranks:
                    break  # the others may go on for long
                if self._until is not None and time.monotonic() > self._until:
                    raise TimeoutError(f"the stream took longer than its {self._timeout:g} s")
                if isinstance(event, Told) and event.kind == "value" and event.values:
                    value = self._load(event.rank, event.values)
                    self._handle.tell(event.rank, "more", 1)
                    return (event.rank, value) if self._with_ranks else value
                if isinstance(event, Told):
                    self._feeder.on_ask(event)
                elif event is not None:
                    self._write(event)
            self._end()
            self._handle.check()
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def close(self) -> None:
        """End the generators on the ranks."""
        if not self._is_over:
            self._end()
            self._handle.leave()

    def _end(self) -> None:
        self._is_over = True
        self._feeder.close()
        if self._handle.failed:
            self._handle.leave()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _iterator_parameters(function: Callable[..., Any]) -> Mapping[object, str]:
    """Return the parameters of a function that are annotated as iterators, by name and position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    found: dict[object, str] = {}
    for at, parameter in enumerate(parameters):
        annotation = parameter.annotation
        kind = typing.get_origin(annotation) or annotation
        text = annotation.rpartition("typing.")[2] if isinstance(annotation, str) else ""
        text = text.rpartition("abc.")[2]
        if kind is collections.abc.Iterator or text.startswith("Iterator"):
            found[at] = found[parameter.name] = parameter.name
    return found


def refuse_nested(talking: Sequence[Stream | Feeder]) -> None:
    """Refuse a call in the loop over a stream, which keeps the ranks busy until it is over.

    The same holds inside of an iterator that is fed to ranks.

    Raises
    ------
    UsageError
        When one of the streams was begun in this thread, and is not over.
    """
    here = threading.get_ident()
    if any(each.keeps_ranks and each.thread == here for each in talking):
        raise UsageError(
            "a stream of this pool is not over, and its ranks are busy with it: read it to its "
            "end, or close() it, before the next call."
        )
