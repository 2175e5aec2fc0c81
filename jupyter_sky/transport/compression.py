"""Adaptive compression: pieces of blobs are compressed if that makes them arrive sooner.

That depends on the link's rate and on the data. The rate is measured while the link is used; speed
and ratio of compression are measured on samples of the data. Data that does not compress is sampled
less and less often, and sent as it is.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import TYPE_CHECKING

from jupyter_sky.transport.frames import Message, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

_QUICK, _THOROUGH = 1, 4  # levels of zlib: a sixth smaller for 1.5 times the work
_SLOW = 12.5e6  # bytes per second; below it, the processor has time for the higher level
_FASTEST = 100e6  # bytes per second; a faster link outruns compression
_SAMPLE = 32 * 1024  # bytes
_WORTHWHILE = 0.9  # compress only if it takes at most this part of the time without
_WEIGHT = 0.3  # weight of a new measurement in the moving average
_PAUSE, _LONGEST_PAUSE = 8, 512  # most pieces between two samples of data that does not compress


class LinkRate:
    """A moving average of a link's rate, in bytes per second.

    Attributes
    ----------
    value
        Bytes per second; ``None`` before the first measurement.
    """

    def __init__(self) -> None:
        self.value: float | None = None

    def measured(self, count: int, seconds: float, full: bool = True) -> None:
        """Add a measurement.

        Parameters
        ----------
        count
            Bytes that have arrived.
        seconds
            How long that took.
        full
            Whether the link was busy all the time; if not, it may be faster than that.
        """
        rate = count / max(seconds, 1e-6)
        if self.value is None:
            self.value = rate
        elif full:
            # The mean of times, not of rates: bytes that fit into a buffer seem to take none.
            self.value = 1 / ((1 - _WEIGHT) / self.value + _WEIGHT / rate)
        else:
            self.value = max(self.value, rate)


class Compressor:
    """Compresses the pieces of one blob if that makes them arrive sooner.

    Parameters
    ----------
    rate
        The rate of the link that they are sent on.
    """

    def __init__(self, rate: LinkRate) -> None:
        self._rate = rate
        self._speed = 0.0
        self._ratio = 1.0
        self._pause = _PAUSE
        self._wait = 0

    async def pack(self, piece: memoryview) -> tuple[Message, Buffer]:
        """Return the fields of a piece's message, and its payload."""
        if await self._is_worth_trying(piece):
            compressed = await self._compress(piece, time.perf_counter)
            if len(compressed) < piece.nbytes:
                return {"whole": piece.nbytes}, compressed
        return {}, piece

    @property
    def _pays(self) -> bool:
        rate = self._rate.value
        if rate is None or not self._speed:
            return False
        return rate / self._speed + self._ratio < _WORTHWHILE

    async def _is_worth_trying(self, piece: memoryview) -> bool:
        rate = self._rate.value
        if rate is None or rate > _FASTEST:
            return False
        if not self._pays:
            if self._wait > 0:
                self._wait -= 1
                return False
            middle = max(0, piece.nbytes - _SAMPLE) // 2
            # Samples are measured in processor time: if a thread once began late, all pieces up to
            # the next sample would be sent uncompressed.
            await self._compress(piece[middle : middle + _SAMPLE], time.thread_time)
        if self._pays:
            self._pause = _PAUSE
            return True
        self._wait, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return False

    async def _compress(self, piece: memoryview, clock: Callable[[], float]) -> bytes:
        level = _THOROUGH if (self._rate.value or 0) <= _SLOW else _QUICK

        def compress() -> tuple[bytes, float]:
            began = clock()
            compressed = zlib.compress(piece, level)
            return compressed, clock() - began

        # In a thread: the loop serves other links, and this link is sending meanwhile.
        compressed, seconds = await asyncio.to_thread(compress)
        speed = piece.nbytes / max(seconds, 1e-6)
        ratio = len(compressed) / piece.nbytes
        weight = _WEIGHT if self._pays else 1.0
        self._speed += weight * (speed - self._speed)
        self._ratio += weight * (ratio - self._ratio)
        return compressed


def expand(message: Message, payload: memoryview, largest: int) -> memoryview:
    """Return a piece as it was before ``pack``.

    Parameters
    ----------
    message, payload
        What `Compressor.pack` made of it.
    largest
        The most bytes that a piece may have.

    Raises
    ------
    ProtocolError
        If it is larger, or damaged.
    """
    whole = message.get("whole")
    if whole is None:
        return payload
    if not isinstance(whole, int) or not 0 < whole <= largest:
        raise ProtocolError(f"a piece of {str(whole)[:20]} bytes is too large")
    expander = zlib.decompressobj()
    try:
        data = expander.decompress(payload, whole)
    except zlib.error as error:
        raise ProtocolError(f"a piece is damaged ({error})") from None
    if len(data) != whole:
        raise ProtocolError("a piece is not as large as it should be")
    return memoryview(data)
