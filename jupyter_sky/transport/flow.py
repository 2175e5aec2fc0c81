"""How much one side has in flight to the other: as much as the link carries in a moment.

What is in flight lies in buffers on the way, and whatever else is sent waits behind it. So the
other side acknowledges every now and then what has arrived, which tells the rate of the link too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_sky.transport.compression import Rate
from jupyter_sky.transport.link import Link

_MOMENT = 0.5  # seconds of what a link carries that are in flight at most
_LEAST, _MOST = 1024 * 1024, 8 * 1024 * 1024  # bytes


class Flow:
    """What one side has in flight to the other.

    Attributes
    ----------
    rate
        The rate of the link, as far as it was measured.
    """

    def __init__(self) -> None:
        self.rate = Rate()
        self._in_flight = self._unasked = 0
        self._since = 0.0
        self._was_idle = True
        self._changed = asyncio.Event()

    @property
    def _room(self) -> int:
        return int(min(max(_LEAST, _MOMENT * (self.rate.value or 0)), _MOST))

    async def wait_for_room(self, size: int, link: Link, ask: Callable[[], object]) -> bool:
        """Wait until so many bytes may leave; return whether there still is a link for them.

        Parameters
        ----------
        size
            The bytes.
        link
            The link that they are to go over.
        ask
            Asks for an acknowledgement of what was not yet asked for.
        """
        while self._in_flight and self._in_flight + size > self._room and not link.closed:
            ask()  # where the link got slower, no acknowledgement would come otherwise
            self._changed.clear()
            await self._changed.wait()
        return not link.closed

    def on_leaving(self, size: int) -> bool:
        """Count bytes that leave now; return whether it is time to ask what has arrived."""
        if not self._in_flight:
            self._since, self._was_idle = asyncio.get_running_loop().time(), True
        self._in_flight += size
        self._unasked += size
        return self._unasked >= self._room // 2

    def take_unasked(self) -> int:
        """Return of how many bytes nobody has asked yet whether they have arrived, and note it."""
        count, self._unasked = self._unasked, 0
        return count

    def on_arrived(self, count: int) -> None:
        """Count bytes that have arrived, in the order in which they were asked for."""
        self.on_lost(count)
        now = asyncio.get_running_loop().time()
        # For what began on an idle link, the time includes the way there and back.
        self.rate.measured(count, now - self._since, full=not self._was_idle)
        self._since, self._was_idle = now, False

    def on_lost(self, count: int = 0) -> None:
        """Count bytes that are no longer in flight; also without any, who waits looks again."""
        self._in_flight -= count
        self._changed.set()
