"""Flow control: no more is in flight than the link carries in a moment.

Data in flight fills buffers on the way, and whatever else is sent has to wait behind it. So the
other side acknowledges from time to time what has arrived, which also shows the link's rate.

What a link has carried before says little after a pause: a laptop may be in another network then.
So each link, and one after a pause, gets little at first, and more with each acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_sky.transport.compression import LinkRate
from jupyter_sky.transport.link import Link

_MOMENT = 0.5  # most seconds' worth of data in flight
_LEAST, _MOST = 1024 * 1024, 8 * 1024 * 1024  # bytes
_PAUSE = 1.0  # seconds


class Flow:
    """The data that one side has in flight to the other.

    Attributes
    ----------
    rate
        The rate of the link, once it was measured.
    """

    def __init__(self) -> None:
        self.rate = LinkRate()
        self._in_flight = self._unasked = 0
        self._link: Link | None = None
        self._proven = _LEAST
        self._since = 0.0
        self._was_idle = True
        self._changed = asyncio.Event()

    @property
    def _room(self) -> int:
        room = int(max(_LEAST, _MOMENT * (self.rate.value or 0)))
        return min(room, self._proven, _MOST)

    async def wait_for_room(self, size: int, link: Link, ask: Callable[[], object]) -> bool:
        """Wait until ``size`` bytes may be sent; return whether the link still exists.

        Parameters
        ----------
        size
            The number of bytes.
        link
            The link to send them on.
        ask
            Asks for an acknowledgement of bytes for which none was requested yet.
        """
        if link is not self._link:
            self._link, self._proven, self.rate.value = link, _LEAST, None
        while self._in_flight and self._in_flight + size > self._room and not link.closed:
            ask()  # if the link got slower, no acknowledgement would come otherwise
            self._changed.clear()
            await self._changed.wait()
        return not link.closed

    def on_leaving(self, size: int) -> bool:
        """Count bytes that are sent now; return whether to ask for an acknowledgement."""
        if not self._in_flight:
            now = asyncio.get_running_loop().time()
            if now - self._since > _PAUSE:
                self._proven = _LEAST
            self._since, self._was_idle = now, True
        self._in_flight += size
        self._unasked += size
        return self._unasked >= self._room // 2

    def take_unasked(self) -> int:
        """Return, and reset, the number of bytes for which no acknowledgement was requested yet."""
        count, self._unasked = self._unasked, 0
        return count

    def on_arrived(self, count: int) -> None:
        """Count bytes that have arrived, in the order in which they were asked for."""
        self.on_lost(count)
        now = asyncio.get_running_loop().time()
        # If the link was idle before, the time includes a round trip.
        self.rate.measured(count, now - self._since, full=not self._was_idle)
        self._since, self._was_idle = now, False
        self._proven = min(self._proven + count, _MOST)

    def on_lost(self, count: int = 0) -> None:
        """Count bytes that are no longer in flight, even if none, and wake those who wait."""
        self._in_flight -= count
        self._changed.set()
