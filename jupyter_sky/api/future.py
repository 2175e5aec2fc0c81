"""The future of a call: what ``call > pool`` returns."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Generator
from typing import Any, TypeVar

R = TypeVar("R")


class CallFuture(concurrent.futures.Future[R]):
    """The future of a call, which can also be awaited.

    ``cancel()`` stops the call, also where a rank is busy with it. As Stop does, it raises a
    ``KeyboardInterrupt`` there, and what the rank has under its names is kept; one that does not
    react for ten seconds gets a new process. ``False`` says that the call was done before.
    """

    def __await__(self) -> Generator[Any, None, R]:
        return asyncio.wrap_future(self).__await__()
