"""Iterators of the notebook that are arguments of calls: their items are fed to the ranks.

Items are requested from an iterator as the ranks use them up; it never runs ahead by more than a
few.
"""

from __future__ import annotations

import collections.abc
import inspect
import io
import threading
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jupyter_sky.api.call import Fed
from jupyter_sky.api.calls.needs import find_needs
from jupyter_sky.api.compute import PendingCompute
from jupyter_sky.cluster.calls.batch import Asked
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Message
from jupyter_sky.errors import SkyError
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.reducers.memory_maps import copied_unless_seen
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.calls import AHEAD
from jupyter_sky.transport.protocol.events import Told


def with_feeds(
    pending: PendingCompute[Any],
) -> tuple[PendingCompute[Any], list[Iterable[Any]]]:
    """Return a call in which its iterators are replaced by numbers, and the iterators."""
    feeds: list[Iterable[Any]] = []
    names = _iterator_parameters(pending.function.local_function)

    def argument(name: object, value: Any) -> Any:
        is_wanted = name in names and isinstance(value, collections.abc.Iterable)
        if not is_wanted and not _is_stream(value):
            return value
        feeds.append(value)
        return Fed(len(feeds) - 1)

    args = tuple(argument(at, value) for at, value in enumerate(pending.args))
    kwargs = {name: argument(name, value) for name, value in pending.kwargs.items()}
    return replace(pending, args=args, kwargs=kwargs) if feeds else pending, feeds


def _is_stream(value: object) -> bool:
    # What is in memory is a value, which has more than its lines.
    in_memory = io.BytesIO, io.StringIO
    return isinstance(value, collections.abc.Iterator) and not isinstance(value, in_memory)


def can_begin_again(pending: PendingCompute[Any]) -> bool:
    """Return whether none of the iterators of a call is used up by an attempt at it."""
    return all(map(_begins_again, with_feeds(pending)[1]))


def _begins_again(source: Iterable[Any]) -> bool:
    return iter(source) is not source


class Feeder:
    """Feeds items of iterators to the ranks that ask for them; each rank gets all items.

    Parameters
    ----------
    cluster
        The cluster.
    handle
        The run.
    feeds
        The iterators or iterables.
    ranks
        The ranks of the run.
    """

    def __init__(
        self,
        cluster: Cluster,
        handle: RunHandle,
        feeds: Sequence[Iterable[Any]],
        ranks: Sequence[int],
    ) -> None:
        self._cluster = cluster
        self._handle = handle
        self._feeds = [_Feed(number, iter(feed), ranks) for number, feed in enumerate(feeds)]
        self._ranks = tuple(ranks)
        self._updates: list[NamespaceUpdate] = []
        self._is_over = False
        self.thread = threading.get_ident()

    @property
    def keeps_ranks(self) -> bool:
        """Whether the run keeps the ranks busy until they are fed."""
        return not self._is_over and not self._handle.finished

    def on_ask(self, event: Told) -> None:
        """Note which items a rank asks for, and give the ranks what is wanted."""
        if event.kind == "ask" and 0 <= event.feed < len(self._feeds):
            asked = self._feeds[event.feed].asked
            asked[event.rank] = min(asked[event.rank] + event.count, AHEAD)
            self.feed()

    def feed(self) -> None:
        """Give the ranks the items that they ask for, unless some are too far behind.

        Ranks that have finished are not waited for: they need not take all items.
        """
        there = self._handle.waiting
        for feed in self._feeds:
            while feed.is_next_wanted(by=there):
                self._feed(feed)

    def _feed(self, feed: _Feed) -> None:
        try:
            item = next(feed.items)
        except StopIteration:
            feed.is_over = True
            for rank in self._ranks:
                self._handle.tell(rank, Message("items_end", feed=feed.number))
            return
        message, update = _pack(self._cluster, feed, item, self._ranks)
        if update:
            self._updates.append(update)
        feed.position += 1
        for rank in self._ranks:
            feed.asked[rank] -= 1
            self._handle.tell(rank, message)

    def close(self) -> None:
        """Note which of the names that were sent along have arrived on the ranks."""
        self._is_over = True
        sync, done = self._cluster.sync, self._handle.done
        for update in self._updates:
            for rank in self._ranks:
                sync.ran(update, {rank: {}}, well=True)
                if rank in done:
                    sync.missed(update, rank, done[rank].arrived or ())


class CallFeeds:
    """Feeds items of iterators to calls, each of which has its own iterators.

    Parameters
    ----------
    cluster
        The cluster.
    feeds
        The iterators or iterables of each call that has any, by its position.
    spent
        Receives the calls that cannot be retried.
    """

    def __init__(
        self, cluster: Cluster, feeds: Mapping[int, Sequence[Iterable[Any]]], spent: set[int]
    ) -> None:
        self._cluster = cluster
        self._calls = {number: _FedCall(each) for number, each in feeds.items()}
        self._spent = spent
        self._is_over = not feeds
        self.thread = threading.get_ident()

    @property
    def keeps_ranks(self) -> bool:
        """Whether calls may keep ranks busy until they are fed."""
        return not self._is_over

    def on_ask(self, asked: Asked) -> Asked | None:
        """Give a rank the next item; return the rest of its request."""
        call = self._calls.get(asked.number)
        if call is None or not call.begin(asked):
            return None
        feed = call.feeds[asked.feed]
        if not call.can_begin_again[asked.feed]:
            self._spent.add(asked.number)
        try:
            item = next(feed.items)
        except StopIteration:
            feed.is_over = True
            self._cluster.calls.tell(asked, Message("items_end", feed=feed.number))
            return None
        message, update = _pack(self._cluster, feed, item, (asked.rank,))
        feed.position += 1
        self._cluster.calls.tell(asked, message, update)
        left = min(asked.count, AHEAD) - 1
        return replace(asked, count=left) if left > 0 else None

    def on_answer(self, number: int) -> None:
        """Release the iterators of a finished call."""
        if self._calls.pop(number, None) and not self._calls:
            self._is_over = True

    def close(self) -> None:
        """Stop feeding."""
        self._calls.clear()
        self._is_over = True


class _FedCall:
    """The iterators of a call; a retry restarts them if possible."""

    def __init__(self, sources: Sequence[Iterable[Any]]) -> None:
        self._sources = sources
        self._attempt = 0
        self.feeds: list[_Feed] = []
        self.can_begin_again = [*map(_begins_again, sources)]

    def begin(self, asked: Asked) -> bool:
        """Return whether a rank gets an item; restart the iterators for a new attempt.

        Raises
        ------
        SkyError
            If it would have to restart an iterator that cannot be restarted.
        """
        if asked.attempt > self._attempt:
            again = zip(self.feeds, self.can_begin_again, strict=False)
            if any((feed.position or feed.is_over) and not can for feed, can in again):
                raise SkyError(
                    f"call {asked.number + 1} cannot be tried again: its rank was lost, and items "
                    "of its iterator are used up."
                )
            self._attempt = asked.attempt
            sources = enumerate(self._sources)
            self.feeds = [_Feed(number, iter(source), ()) for number, source in sources]
        is_there = asked.attempt == self._attempt and 0 <= asked.feed < len(self.feeds)
        return is_there and not self.feeds[asked.feed].is_over


class _Feed:
    """An iterator of the notebook, and how many more items each rank has requested."""

    def __init__(self, number: int, items: Iterator[Any], ranks: Sequence[int]) -> None:
        self.number = number
        self.items = items
        self.asked = dict.fromkeys(ranks, 0)
        self.position = 0
        self.modules: frozenset[str] = frozenset()  # which ranks got with earlier items
        self.is_over = False

    def is_next_wanted(self, by: Collection[int]) -> bool:
        """Return whether every one of some ranks has requested the next item."""
        return bool(by) and not self.is_over and all(self.asked[rank] > 0 for rank in by)


def _pack(
    cluster: Cluster, feed: _Feed, item: Any, ranks: Sequence[int]
) -> tuple[Message, NamespaceUpdate | None]:
    """Return the next item packed, and what ranks lack of what it needs, if anything."""
    with copied_unless_seen(cluster.sync.shares_files):
        pickled = pickling.dump((feed.position, item), "an item of an iterator")
    packed, parts = blobs.pack(pickled)
    message = Message("item", 0, feed.number, packed, parts, pickled.cells)
    if not pickled.needs and pickled.modules <= feed.modules:
        return message, None
    feed.modules |= pickled.modules
    update = find_needs(cluster, pickled.needs, pickled.modules, ranks)
    update.outdated.clear()  # ranks are not told of that with an item
    cluster.sync.sent(update)
    while cluster.sync.is_outdated(update):  # it goes to a run that has its turn
        event_loop.wait(cluster.sync.refresh(update))
    return replace(message, blobs={**parts, **update.blobs}, names=update.groups), update


def _iterator_parameters(function: Callable[..., Any]) -> Mapping[object, str]:
    """Return a function's parameters that are annotated as iterators, by name and position."""
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
