"""The future of a call: what ``call > pool`` returns."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Generator
from typing import Any, TypeVar

R = TypeVar("R")


class CallFuture(concurrent.futures.Future[R]):
    """The future of a call, which can also be awaited.

    ``cancel()`` stops the call, even if a rank is executing it. Like Stop, it raises a
    ``KeyboardInterrupt`` there, and the rank keeps its variables; a rank that does not react for
    ten seconds gets a new process. It returns ``False`` if the call was already done.
    """

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio  # imported here, since ranks that read a call do not need it

        return asyncio.wrap_future(self).__await__()
