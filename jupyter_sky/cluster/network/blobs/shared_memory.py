"""Blobs in the shared memory of a node on this computer, which the notebook writes and maps itself.

Over a link, a blob would be copied into the link, out of it, and into shared memory; this copies it
once. The agent creates the file, and renames it when it is complete, so that the agent's limits
hold and it knows all blobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import blake3

from jupyter_sky.errors import SkyError
from jupyter_sky.serialization.blobs import file_name, map_privately
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Traffic

LEAST = 1024 * 1024
"""Bytes from which on a blob is written here: smaller ones are as fast over the link."""

_AT_ONCE = 64 * 1024 * 1024  # bytes between two points at which it can be cancelled

Arrived = Callable[[int], None]


class Request(Protocol):
    """Sends a request to the agent, as `Connection.request` does."""

    async def __call__(
        self,
        op: str,
        *,
        within: float | None = ...,
        link_within: float | None = ...,
        **fields: Any,
    ) -> Message:
        """Return the agent's answer."""


class SharedMemory:
    """The folder of a node's blobs, where this process may use it.

    Parameters
    ----------
    folder
        The folder; ``None`` where it is on another computer.
    request
        Sends a request to the agent.
    traffic
        Counts what is written there.
    """

    def __init__(
        self, folder: Path | None, request: Request, traffic: Traffic | None = None
    ) -> None:
        self._folder = folder
        self._request = request
        self._traffic = traffic or Traffic()

    async def write(self, key: str, data: memoryview, arrived: Arrived) -> bool:
        """Write a blob; return whether the node has it now. If not, it has to be sent.

        Parameters
        ----------
        key, data
            Its digest, and the blob.
        arrived
            Called repeatedly with how many bytes are written.
        """
        if self._folder is None or data.nbytes < LEAST:
            return False
        with contextlib.suppress(SkyError, OSError):
            room = await self._request("make_room", blob=key, size=data.nbytes, writer=os.getpid())
            if not room["part"]:
                return bool(room["here"])
            part = self._folder / Path(room["part"]).name
            digest = ""
            try:
                with contextlib.suppress(OSError):
                    digest = await self._fill(part, data, arrived)
            finally:  # also if this is cancelled: the agent removes what is not whole
                size = data.nbytes if digest == key else -1
                answer = await self._request("fill_room", blob=key, part=part.name, size=size)
            return bool(answer["filled"])
        return False

    async def _fill(self, part: Path, data: memoryview, arrived: Arrived) -> str:
        """Write a blob into an existing file, and return the digest of what was written.

        It is hashed again while it is written: if the user's code changes it at the same time, it
        must not be stored under the digest of its former content.
        """
        loop = asyncio.get_running_loop()
        hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
        descriptor = os.open(part, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            with ThreadPoolExecutor(2, "sky-write") as threads:
                for offset in range(0, data.nbytes, _AT_ONCE):
                    piece = data[offset : offset + _AT_ONCE]
                    await asyncio.gather(
                        loop.run_in_executor(threads, _write, descriptor, piece, offset),
                        loop.run_in_executor(threads, hasher.update, piece),
                    )
                    self._traffic.sent += piece.nbytes
                    arrived(offset + piece.nbytes)
            os.ftruncate(descriptor, data.nbytes)
        finally:
            os.close(descriptor)
        return hasher.hexdigest()

    def read(self, key: str, size: int) -> memoryview | None:
        """Return a blob as writable memory; ``None`` if it is not in the folder, or too small."""
        if self._folder is not None and size >= LEAST:
            with contextlib.suppress(OSError, ValueError):
                return memoryview(map_privately(self._folder / file_name(key), size))
        return None


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data.nbytes:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count
