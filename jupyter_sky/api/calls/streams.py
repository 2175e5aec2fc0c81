"""Calls that yield values while they run: the values arrive at once.

Neither side runs ahead: a rank waits until its values were taken here.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_sky.api.calls.feeds import Feeder
from jupyter_sky.api.compute import PendingCompute
from jupyter_sky.api.display.wording import reword
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import HangNotice, Message, RunNotice
from jupyter_sky.formatting import format_count
from jupyter_sky.transport.protocol.events import Display, Output, Told


def yields(pending: PendingCompute[Any]) -> bool:
    """Return whether the function of a call is a generator."""
    function = pending.function.local_function
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


class Stream(Iterator[Any]):
    """The values that ranks yield, as they yield them.

    It can be closed before its end, by a ``with`` block, with ``close()`` or by breaking out of a
    loop; this closes the generators on the ranks.

    Parameters
    ----------
    handle
        The run.
    feeder
        Feeds the ranks the items that they ask for.
    load
        Unpacks a value of a rank.
    write
        Shows what ranks print.
    with_ranks
        Whether each value comes with its rank.
    timeout
        Seconds that it may take in total.
    """

    def __init__(
        self,
        handle: RunHandle,
        feeder: Feeder,
        load: Callable[[int, Any], Any],
        write: Callable[[Output | Display | RunNotice | HangNotice], None],
        with_ranks: bool,
        timeout: float | None,
    ) -> None:
        self._handle = handle
        self._feeder = feeder
        self._load = load
        self._write = write
        self._with_ranks = with_ranks
        self._is_over = False
        self._taken = 0
        self._timeout = timeout
        self._until = time.monotonic() + timeout if timeout else None
        self.thread = threading.get_ident()
        self._events = handle.events()
        handle.begin()

    @property
    def keeps_ranks(self) -> bool:
        """Whether it keeps the ranks busy until it is read."""
        return not self._is_over and not self._handle.finished

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            for event in self._events:
                if self._handle.failed and self._with_ranks:
                    break  # the others may continue for a long time
                if self._until is not None and time.monotonic() > self._until:
                    raise TimeoutError(f"the stream took longer than its {self._timeout:g} s")
                if isinstance(event, Told) and event.kind == "value" and event.values:
                    value = self._load(event.rank, event.values)
                    self._handle.tell(event.rank, Message("more"))
                    self._taken += 1
                    return (event.rank, value) if self._with_ranks else value
                if isinstance(event, Told):
                    self._feeder.on_ask(event)
                elif event is not None:
                    self._write(event)
                else:
                    self._feeder.feed()
            self._end()
            self._handle.check()
        except BaseException as error:
            self.close()
            if isinstance(error, KeyboardInterrupt) and not isinstance(error, Interrupted):
                after = format_count(self._taken, "value")
                raise Interrupted(f"the stream was stopped after {after}.") from None
            reword(error)
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
