"""Calls that are a run each: ``call @ pool`` on every rank, and ``call >> pool`` on one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from jupyter_sky.api.calls.feeds import Feeder, can_begin_again, with_feeds
from jupyter_sky.api.calls.needs import find_needs
from jupyter_sky.api.calls.open_streams import OpenStreams
from jupyter_sky.api.calls.pickled_call import pickle_call
from jupyter_sky.api.calls.program import program_words
from jupyter_sky.api.calls.streams import Stream, yields
from jupyter_sky.api.calls.terminal import debugging, follow, write
from jupyter_sky.api.compute import PendingCompute
from jupyter_sky.api.plugin import Plugin, decorators_of
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.cluster.runs.task import Task, no_debugging
from jupyter_sky.serialization import blobs

R = TypeVar("R")


class SingleRuns:
    """Carries out each call as a run of its own.

    Parameters
    ----------
    cluster
        Its ranks carry out the calls.
    plugins
        Those of the pool, which may decorate the function.
    streams
        The pool's streams that are still read.
    """

    def __init__(self, cluster: Cluster, plugins: Sequence[Plugin], streams: OpenStreams) -> None:
        self._cluster = cluster
        self._plugins = plugins
        self._streams = streams
        self._turns = itertools.count()

    def on_all(self, pending: PendingCompute[Any]) -> Any:
        """Run a call on every rank; return the results in rank order, or a stream of them."""
        ranks = self._cluster.all_ranks
        results = self._run(pending, ranks, with_ranks=True)
        return [results[rank] for rank in ranks] if isinstance(results, dict) else results

    def on_one(self, pending: PendingCompute[R]) -> R:
        """Run a call on one rank, in turn; return its result, or a stream of them."""
        retries = pending.retries if pending.retries and can_begin_again(pending) else 0
        for left in range(retries, -1, -1):
            ranks = self._cluster.all_ranks
            rank = ranks[next(self._turns) % len(ranks)]
            try:
                results = self._run(pending, (rank,), with_ranks=False)
                break
            except RankLost:
                if not left:
                    raise
        return cast("R", results[rank] if isinstance(results, dict) else results)

    def _run(
        self, pending: PendingCompute[Any], ranks: tuple[int, ...], with_ranks: bool
    ) -> dict[int, Any] | Stream:
        cluster = self._cluster
        self._streams.refuse_nested()
        pending, feeds = with_feeds(pending)
        is_stream = yields(pending)
        call = pickle_call(pending, cluster, decorators_of(self._plugins), is_stream)
        packed, parts = blobs.pack(call)
        update = find_needs(cluster, call.needs, call.modules, ranks)
        task = Task(
            ranks=ranks,
            call=packed,
            cells=call.cells,
            update=update,
            blobs=parts,
            show=ranks,
            talks=is_stream or bool(feeds),
            debugging=no_debugging() if is_stream else debugging(),
            program=program_words(),
        )
        run = cluster.run(task)
        feeder = Feeder(cluster, run, feeds, ranks)
        if is_stream:
            stream = Stream(run, feeder, cluster.calls.load, write, with_ranks, pending.timeout)
            self._streams.add(stream)
            return stream
        self._streams.add(feeder)
        try:
            follow(run, feeder, pending.timeout)
        except Exception:
            run.stop()  # an iterator of the user has failed
            raise
        finally:
            feeder.close()
        return run.values()
