"""Flow-controlled upload of blobs: as fast as the link carries them, compressed where that pays.

No more is in flight than the link carries in a moment, so that a request in between, such as Stop,
does not wait behind megabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from jupyter_sky.cluster.network.blobs.shared_memory import Request, SharedMemory
from jupyter_sky.cluster.network.transfer import HostTransfer
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_bytes
from jupyter_sky.serialization.blobs import PIECE, digest
from jupyter_sky.transport.compression import Compressor
from jupyter_sky.transport.flow import Flow
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link, Traffic
from jupyter_sky.transport.tasks import BackgroundTasks

SMALL = 32 * 1024
"""Bytes up to which blobs share a message: one for each would take longer than its bytes do."""

_TOGETHER = 1024  # blobs in a message, at most


class Uploads:
    """The uploads of one connection: which blobs the node has, and what is in flight.

    Parameters
    ----------
    request
        Sends a request to the agent.
    link
        Returns the present link; ``None`` while there is none.
    folder
        The folder of the node's blobs, if this process may write into it.
    traffic
        Counts what is written there.

    Attributes
    ----------
    shared
        The shared memory of the node, where that is this computer.
    """

    def __init__(
        self,
        request: Request,
        link: Callable[[], Link | None],
        folder: Path | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self._request = request
        self._link = link
        self.shared = SharedMemory(folder, request, traffic)
        self._known: set[str] = set()
        self._begun: set[str] = set()
        self._flow = Flow()
        self._tasks = BackgroundTasks()

    @property
    def known(self) -> list[str]:
        """The digests of the blobs that the node is known to have."""
        return list(self._known)

    def has(self, key: str) -> bool:
        """Return whether the node is known to have a blob."""
        return key in self._known

    def note_arrived(self, key: str) -> None:
        """Record that the node has a blob that was not sent from here."""
        self._known.add(key)

    def note_missing(self, keys: Iterable[str]) -> None:
        """Record that the node does not have these blobs."""
        for key in keys:
            self._known.discard(key)
            # Part of it may have arrived before the link broke: `_put` asks how much.
            self._begun.add(key)

    async def put(
        self, blobs: Mapping[str, memoryview], transfer: HostTransfer | None = None
    ) -> None:
        """Send the blobs that the node does not have yet.

        Parameters
        ----------
        blobs
            The blobs by their digests.
        transfer
            Counts what leaves and what has arrived.
        """
        transfer = transfer or HostTransfer()
        for key, data in blobs.items():
            if key not in self._known and (key in self._begun or data.nbytes > SMALL):
                arrived = partial(transfer.on_arrived, key)
                if await self.shared.write(key, data, arrived):
                    arrived()  # also if it was there before
                else:
                    await self._put(key, data, transfer)
                self._note_sent([key])
        rest = {key: data for key, data in blobs.items() if key not in self._known}
        for batch in _batches(rest):
            await self._put_together({key: rest[key] for key in batch}, transfer)
            self._note_sent(batch)

    async def put_before(
        self, request: Callable[[], Awaitable[Message]], blobs: Mapping[str, memoryview], what: str
    ) -> None:
        """Send blobs and then a request that needs them; again if the node still lacks some.

        Parameters
        ----------
        request
            Sends the request, and returns the answer.
        blobs
            The blobs by their digests.
        what
            What needs them, as in ``"this run"``.

        Raises
        ------
        SkyError
            If the node lacks some of them even then.
        """
        for _ in range(2):
            if blobs:
                await self.put(blobs)
            answer = await request()
            if "missing" not in answer:
                return
            self.note_missing(answer["missing"])
        missing = {key: blobs[key] for key in answer["missing"] if key in blobs}
        raise await asyncio.to_thread(_not_arrived, missing or blobs, what)

    def _note_sent(self, keys: Iterable[str]) -> None:
        self._known.update(keys)
        self._begun.difference_update(keys)

    async def _put_together(self, blobs: Mapping[str, memoryview], transfer: HostTransfer) -> None:
        """Send small blobs in one message; if the link breaks, send them one by one."""
        link = self._link()
        self._begun.update(blobs)
        if link is not None:
            data = memoryview(b"".join(blobs.values()))
            header = {"op": "pieces", "blobs": [(key, blobs[key].nbytes) for key in blobs]}
            compressor = Compressor(self._flow.rate)
            await self._send_piece(link, header, data, compressor, list(blobs), transfer)
            self._ask_for_acknowledgement(list(blobs), transfer)
        if link is None or link is not self._link():
            for key, data in blobs.items():
                await self._put(key, data, transfer)

    async def _put(self, key: str, data: memoryview, transfer: HostTransfer) -> None:
        """Send a blob; if the link breaks, go on over the next one."""
        offset = 0
        link = None if key in self._begun else self._link()
        self._begun.add(key)
        while offset < data.nbytes:
            if link is None or link is not self._link():
                # This waits for a link.
                answer = await self._request("arrived", blob=key, link_within=None)
                offset = max(0, answer["size"])
                transfer.on_arrived(key, offset)
                link = self._link()
            else:
                offset = await self._send(link, key, data, offset, transfer)

    async def _send(
        self,
        link: Link,
        key: str,
        data: memoryview,
        offset: int,
        transfer: HostTransfer,
    ) -> int:
        """Send a blob from an offset until its end, or until the link breaks; return the offset."""
        compressor = Compressor(self._flow.rate)
        while not link.closed and offset < data.nbytes:
            piece = data[offset : offset + PIECE]
            header = {"op": "piece", "blob": key, "offset": offset, "size": data.nbytes}
            if not await self._send_piece(link, header, piece, compressor, [key], transfer):
                break
            offset += piece.nbytes
        self._ask_for_acknowledgement([key], transfer)
        return offset

    async def _send_piece(
        self,
        link: Link,
        header: Message,
        piece: memoryview,
        compressor: Compressor,
        keys: Sequence[str],
        transfer: HostTransfer,
    ) -> bool:
        """Send a piece as soon as the link has room for it; return whether there was a link."""
        about, packed = await compressor.pack(piece)
        size = memoryview(packed).nbytes
        ask = partial(self._ask_for_acknowledgement, keys, transfer)
        if not await self._flow.wait_for_room(size, link, ask):
            return False
        asks = self._flow.on_leaving(size)
        link.send({**header, **about}, packed)
        await link.drain()
        transfer.on_left(piece.nbytes, size, self._flow.rate.value)
        if asks:
            ask()
            await asyncio.sleep(0)  # so that it leaves now, and not behind the next piece
        return True

    def _ask_for_acknowledgement(self, keys: Sequence[str], transfer: HostTransfer) -> None:
        if count := self._flow.take_unasked():
            self._tasks.spawn(self._wait_for_acknowledgement(keys, count, transfer))

    async def _wait_for_acknowledgement(
        self, keys: Sequence[str], count: int, transfer: HostTransfer
    ) -> None:
        """Wait until the last ``count`` bytes have arrived: the agent handles messages in order."""
        *before, last = keys
        try:
            answer = await self._request("arrived", blob=last, within=None, link_within=None)
            for key in before:
                transfer.on_arrived(key)
            transfer.on_arrived(last, answer["size"])
        except SkyError:
            self._flow.on_lost(count)  # whoever sends the blob gets the error too
        except BaseException:
            self._flow.on_lost(count)
            raise
        else:
            self._flow.on_arrived(count)


def _not_arrived(blobs: Mapping[str, memoryview], what: str) -> SkyError:
    """Return why a node does not take blobs: their digests are compared again, which takes time."""
    changed = [data for key, data in blobs.items() if digest(data) != key]
    size = format_bytes(sum(data.nbytes for data in changed or blobs.values()))
    if changed:
        return SkyError(
            f"{size} that {what} needs were changed in this program before they were sent: give it "
            "a copy of what you change meanwhile, as in `values.copy()`."
        )
    return SkyError(
        f"the {size} that {what} needs did not arrive: they were changed on the way, or a node has "
        "no room for them in shared memory."
    )


def _batches(blobs: Mapping[str, memoryview]) -> Iterator[list[str]]:
    """Yield the keys of small blobs that go together."""
    batch: list[str] = []
    size = 0
    for key, data in blobs.items():
        if batch and (size + data.nbytes > PIECE or len(batch) >= _TOGETHER):
            yield batch
            batch, size = [], 0
        batch.append(key)
        size += data.nbytes
    if batch:
        yield batch
