"""A connection to a port, whose bytes are asked for piece by piece, some of them twice."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools

from jupyter_sky.node.ports.other_users import is_of_another_user
from jupyter_sky.transport.bridge import NOT_OURS
from jupyter_sky.transport.ports.requests import PIECE, PIECES_AT_ONCE, TAKEN_WITHIN

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
        # By their numbers: those that were asked for or have come, but for what has arrived there.
        self._pieces: dict[int, asyncio.Future[bytes]] = {}
        self._wanted = PIECES_AT_ONCE
        self._more_wanted = asyncio.Event()
        self._waiting = 0
        self._asked = self._loop.time()
        self._taking = self._loop.create_task(self._take())

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
        self._wanted = max(self._wanted, number + PIECES_AT_ONCE)
        self._more_wanted.set()
        piece = self._piece(number)
        self._waiting += 1
        try:
            await asyncio.wait({piece}, timeout=_QUIET)
        finally:
            self._waiting -= 1
            self._asked = self._loop.time()
        return piece.result() if piece.done() else None

    def _piece(self, number: int) -> asyncio.Future[bytes]:
        if number not in self._pieces:
            self._pieces[number] = self._loop.create_future()
            if self._taking.done():
                self._pieces[number].set_result(b"")
        return self._pieces[number]

    async def _take(self) -> None:
        """Take what comes, a little ahead of what was asked for."""
        for number in itertools.count():
            data = b""
            with contextlib.suppress(OSError):
                data = await self._reader.read(PIECE)
            self._piece(number).set_result(data)
            if not data:
                break
            if number + 1 >= self._wanted:
                self._more_wanted.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TAKEN_WITHIN):
                        await self._more_wanted.wait()
        for piece in self._pieces.values():
            if not piece.done():
                piece.set_result(b"")

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
        self._taking.cancel()
