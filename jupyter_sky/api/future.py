"""The future of a call: what ``call > pool`` returns."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any, TypeVar

R = TypeVar("R")


class CallFuture(concurrent.futures.Future[R]):
    """The future of a call, which can also be awaited.

    ``cancel()`` stops the call, even if a rank is executing it. Like Stop, it raises a
    ``KeyboardInterrupt`` there, and the rank keeps its variables; a rank that does not react for
    ten seconds gets a new process. It returns ``False`` if the call was already done.

    Parameters
    ----------
    serve
        Called before this future is waited for, with the future and the time limit; returns what is
        left of that. In the thread that sets results, as in a done callback, it goes on with that.
    """

    def __init__(self, serve: Callable[[CallFuture[Any], float | None], float | None]) -> None:
        super().__init__()
        self._serve = serve

    def result(self, timeout: float | None = None) -> R:
        """Return the value of the call; wait for it if it is not done."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the call, if it failed; wait for it if it is not done."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        from jupyter_sky.cluster.errors import Interrupted  # imported here, as asyncio below
        from jupyter_sky.transport import event_loop

        try:
            event_loop.wait_for(self, self._serve(self, timeout))
        except KeyboardInterrupt:
            raise Interrupted(
                "the wait for the call was stopped; the call goes on: `cancel()` of its future "
                "stops it too."
            ) from None

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio  # imported here, since ranks that read a call do not need it

        return asyncio.wrap_future(self).__await__()
