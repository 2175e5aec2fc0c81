"""The future of a call: what ``call > pool`` returns."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Generator
from typing import Any, TypeVar

R = TypeVar("R")


class CallFuture(concurrent.futures.Future[R]):
    """The future of a call, which can also be awaited."""

    def __await__(self) -> Generator[Any, None, R]:
        return asyncio.wrap_future(self).__await__()
