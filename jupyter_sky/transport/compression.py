"""Compression of blobs on their way, as far as it makes them arrive sooner.

Whether it does depends on the link and on the data, and neither is known beforehand: the rate of
the link is measured while it is used, and what compression brings is tried on samples. Data that
does not compress is tried ever more rarely, and sent as it is.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import TYPE_CHECKING

from jupyter_sky.transport.frames import Message, ProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LEVEL = 1  # the fastest; higher ones take twice as long for some percent
_FASTEST = 100e6  # bytes a second; a link that takes more is faster than compression
_SAMPLE = 32 * 1024
_WORTH = 0.9  # of the time without compression; what saves less is not worth its trouble
_WEIGHT = 0.3  # of a new measurement, beside those before
_PAUSE, _LONGEST_PAUSE = 8, 512  # pieces between two samples of data that does not compress


class Rate:
    """How many bytes a second a link takes.

    Attributes
    ----------
    value
        The rate; ``None`` before it was measured.
    """

    def __init__(self) -> None:
        self.value: float | None = None

    def measured(self, count: int, seconds: float, full: bool = True) -> None:
        """Take note of bytes that have arrived.

        Parameters
        ----------
        full
            Whether the link had bytes to carry all the time; if not, it may be faster than that.
        """
        rate = count / max(seconds, 1e-6)
        if self.value is None:
            self.value = rate
        elif full:
            # The mean of times, not of rates: what fits into a buffer seems to take no time at all.
            self.value = 1 / ((1 - _WEIGHT) / self.value + _WEIGHT / rate)
        else:
            self.value = max(self.value, rate)


class Compressor:
    """Compresses the pieces of one blob where that pays on the link that they take.

    Parameters
    ----------
    rate
        That of the link.

    Attributes
    ----------
    whole, packed
        Bytes of all pieces so far: as they were, and as they left.
    """

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._speed = 0.0
        self._share = 1.0
        self._pause = _PAUSE
        self._wait = 0
        self.whole = self.packed = 0

    async def pack(self, piece: memoryview) -> tuple[Message, Buffer]:
        """Return what leaves in place of a piece, and what the receiver has to know of it."""
        packed: Buffer = piece
        about: Message = {}
        if await self._is_worth_trying(piece):
            compressed = await self._compress(piece)
            if len(compressed) < piece.nbytes:
                packed, about = compressed, {"whole": piece.nbytes}
        self.whole += piece.nbytes
        self.packed += memoryview(packed).nbytes
        return about, packed

    @property
    def _pays(self) -> bool:
        rate = self._rate.value
        if rate is None or not self._speed:
            return False
        return rate / self._speed + self._share < _WORTH

    async def _is_worth_trying(self, piece: memoryview) -> bool:
        rate = self._rate.value
        if rate is None or rate > _FASTEST:
            return False
        if not self._pays:
            if self._wait > 0:
                self._wait -= 1
                return False
            middle = max(0, piece.nbytes - _SAMPLE) // 2
            await self._compress(piece[middle : middle + _SAMPLE])
        if self._pays:
            self._pause = _PAUSE
            return True
        self._wait, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return False

    async def _compress(self, piece: memoryview) -> bytes:
        began = time.perf_counter()
        # In a thread: the loop has other links, and this one has bytes under way meanwhile.
        compressed = await asyncio.to_thread(zlib.compress, piece, _LEVEL)
        speed = piece.nbytes / max(time.perf_counter() - began, 1e-6)
        share = len(compressed) / piece.nbytes
        weight = _WEIGHT if self._pays else 1.0
        self._speed += weight * (speed - self._speed)
        self._share += weight * (share - self._share)
        return compressed


def expand(message: Message, payload: memoryview, largest: int) -> memoryview:
    """Return a piece as it was before ``pack``; one that is larger than that is refused."""
    whole = message.get("whole")
    if whole is None:
        return payload
    if not 0 < whole <= largest:
        raise ProtocolError(f"a piece of {whole} bytes is too large")
    expander = zlib.decompressobj()
    try:
        data = expander.decompress(payload, whole)
    except zlib.error as error:
        raise ProtocolError(f"a piece is damaged ({error})") from None
    if len(data) != whole:
        raise ProtocolError("a piece is not as large as it should be")
    return memoryview(data)
