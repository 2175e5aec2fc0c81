"""A connection to a port, whose bytes are asked for piece by piece, some of them twice."""

from __future__ import annotations

import asyncio
import contextlib
import errno

from jupyter_sky.node.ports.other_users import is_of_another_user
from jupyter_sky.transport.bridge import NOT_OURS
from jupyter_sky.transport.ports.requests import PIECE, PIECES_AT_ONCE

_CONNECT_WITHIN = 10.0  # seconds
_QUIET = 20.0  # seconds after which a question is answered that nothing has come


class PortConnection:
    """A connection to a port; `open` makes one.

    Parameters
    ----------
    reader, writer
        Its streams, which this object owns from now on.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        # By their numbers: what comes next, and what may not have arrived yet.
        self._pieces: dict[int, asyncio.Task[bytes]] = {}
        self._turn = asyncio.Lock()  # pieces are taken in the order of their numbers
        self._waiting = 0
        self._asked = self._loop.time()

    @classmethod
    async def open(cls, addr: str, port: int) -> PortConnection:
        """Connect to a port.

        Raises
        ------
        OSError
            If nothing listens there, or another user of this machine does.
        """
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                reader, writer = await asyncio.open_connection(addr, port, limit=PIECE)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "") from None
        if await asyncio.to_thread(is_of_another_user, writer.get_extra_info("socket")):
            writer.close()
            raise OSError(NOT_OURS)
        return cls(reader, writer)

    @property
    def unread_for(self) -> float:
        """Seconds since anything was asked for; 0 while a question waits."""
        return 0.0 if self._waiting else self._loop.time() - self._asked

    async def read(self, number: int) -> bytes | None:
        """Return a piece of what comes from the port, as soon as there is any.

        Parameters
        ----------
        number
            Which piece. It may be asked for again until that which is `PIECES_AT_ONCE` after it is,
            and not before the one in front of it.

        Returns
        -------
        bytes or None
            The piece, which is empty at the end; ``None`` if nothing comes for a while.
        """
        for old in [each for each in self._pieces if each <= number - PIECES_AT_ONCE]:
            del self._pieces[old]
        if number not in self._pieces:
            self._pieces[number] = self._loop.create_task(self._take())
        self._waiting += 1
        try:
            done, _ = await asyncio.wait({self._pieces[number]}, timeout=_QUIET)
        finally:
            self._waiting -= 1
            self._asked = self._loop.time()
        return done.pop().result() if done else None

    async def _take(self) -> bytes:
        async with self._turn:
            try:
                return await self._reader.read(PIECE)
            except OSError:
                return b""

    def write(self, data: bytes) -> None:
        """Send bytes to the port, after those before."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the port takes more; not for one that is closed."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        """Close it; what was written is still sent."""
        self._writer.close()
        for each in self._pieces.values():
            each.cancel()
