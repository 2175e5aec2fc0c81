"""How blobs leave for a node: no faster than the link takes them, and compressed where that pays.

The agent says every now and then what has arrived, so that there is never more under way than the
link carries in a moment: what is asked for meanwhile, as Stop is, need not wait behind megabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_bytes
from jupyter_sky.serialization.blobs import PIECE
from jupyter_sky.transport.compression import Compressor, Rate

if TYPE_CHECKING:
    from jupyter_sky.cluster.network.connection import Connection

_MOMENT = 0.5  # seconds of what a link carries that are under way at most
_LEAST, _MOST = 2 * PIECE, 32 * PIECE
_SLOW = 50e6  # bytes a second; of faster links nothing is said


class Upload:
    """What leaves over one connection.

    Parameters
    ----------
    connection
        The connection to the node's agent.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rate = Rate()
        self._under_way = self._unmarked = 0
        self._since = 0.0
        self._was_idle = True
        self._whole = self._packed = 0
        self._moved = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def note(self) -> str:
        """What was chosen for the data so far and why, in words; empty if it went at full speed."""
        rate = self._rate.value
        if rate is None or rate > _SLOW or not self._whole:
            return ""
        share = self._packed / self._whole
        link = f"the connection takes {format_bytes(rate)} a second"
        if share < 0.99:
            return f"compressed to {share:.0%}, because {link}"
        return f"{link}, and compression would not help"

    async def send(
        self, key: str, data: memoryview, offset: int, progress: Callable[[int], None]
    ) -> int:
        """Send a blob from an offset on, until it has left or the link breaks; return how far."""
        link, loop = self._connection.link, asyncio.get_running_loop()
        compressor = Compressor(self._rate)
        while link and not link.closed and offset < data.nbytes:
            piece = data[offset : offset + PIECE]
            about, packed = await compressor.pack(piece)
            size = memoryview(packed).nbytes
            while self._under_way and self._under_way + size > self._room and not link.closed:
                self._mark(key)  # where the link got slower, nobody would hear of it otherwise
                self._moved.clear()
                await self._moved.wait()
            if link.closed:
                break
            if not self._under_way:
                self._since, self._was_idle = loop.time(), True
            header = {"op": "piece", "blob": key, "offset": offset, "size": data.nbytes}
            link.send({**header, **about}, packed)
            await link.drain()
            offset += piece.nbytes
            self._count(piece.nbytes, size)
            if self._unmarked >= self._room // 2:
                self._mark(key)
                await asyncio.sleep(0)  # now, and not behind the next piece
            progress(piece.nbytes)
        self._mark(key)
        return offset

    @property
    def _room(self) -> int:
        return int(min(max(_LEAST, _MOMENT * (self._rate.value or 0)), _MOST))

    def _count(self, whole: int, packed: int) -> None:
        self._whole += whole
        self._packed += packed
        self._under_way += packed
        self._unmarked += packed

    def _mark(self, key: str) -> None:
        count, self._unmarked = self._unmarked, 0
        if count:
            task = asyncio.get_running_loop().create_task(self._hear(key, count))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hear(self, key: str, count: int) -> None:
        """Wait until so many bytes have arrived: the agent answers in order."""
        try:
            await self._connection.request("arrived", blob=key, within=None)
        except SkyError:
            return  # whoever sends hears of it too
        finally:
            self._under_way -= count
            self._moved.set()
        now = asyncio.get_running_loop().time()
        # Of what began on an idle link, the time has the way there and back in it.
        self._rate.measured(count, now - self._since, full=not self._was_idle)
        self._since, self._was_idle = now, False
