"""The relay: blobs go from agent to agent as a tree, while they are still arriving.

The notebook sends a blob to one agent, whatever the number of nodes. Who passes it on reads what
has arrived so far; a connection that breaks is made again and goes on where the peer says.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_sky.node.blobs.store import Store
from jupyter_sky.node.network.peers import Peers, Stream
from jupyter_sky.serialization.blobs import PIECE
from jupyter_sky.transport.compression import Compressor, Rate, expand
from jupyter_sky.transport.frames import Message, ProtocolError

STALLED = 300.0
"""Seconds without a new byte after which a blob is taken never to arrive."""

_BRANCHES = 2
_TRIES = 3

Peer = dict[str, Any]
"""``node``, ``addr`` and ``port`` of an agent."""


class Relay:
    """Passes blobs on.

    Parameters
    ----------
    store
        The blobs of this node.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rates: dict[int, Rate] = {}
        self.peers: Peers | None = None

    async def pass_on(self, key: str, size: int, receivers: list[Peer]) -> dict[int, str]:
        """Give a blob, which may still be arriving, to other agents.

        Returns
        -------
        dict
            For the node of each agent that did not get it what is wrong.
        """
        failed: dict[int, str] = {}
        branches = [receivers[start::_BRANCHES] for start in range(_BRANCHES)]
        for part in await asyncio.gather(
            *(self._give(key, size, branch) for branch in branches if branch)
        ):
            failed.update(part)
        return failed

    async def _give(self, key: str, size: int, branch: list[Peer]) -> dict[int, str]:
        """Give a blob to the first of some agents, which gives it to the others."""
        first, *others = branch
        trouble = "it could not be reached"
        for _ in range(_TRIES):
            try:
                return await self._stream(key, size, first, others)
            except (OSError, ProtocolError) as error:
                trouble = str(error)
            except _Stalled:
                return {peer["node"]: "the blob did not arrive here" for peer in branch}
        if not others:
            return {first["node"]: trouble}
        # The others can be well: one of them takes its place.
        return {first["node"]: trouble, **await self.pass_on(key, size, others)}

    async def _stream(self, key: str, size: int, peer: Peer, others: list[Peer]) -> dict[int, str]:
        assert self.peers is not None
        async with self.peers.connect(peer["addr"], peer["port"]) as stream:
            about = {"blob": key, "size": size, "node": peer["node"], "to": others}
            await stream.send({"op": "take", **about})
            answer, _ = await stream.receive()
            offset = answer["have"]
            rate = self._rates.setdefault(peer["node"], Rate())
            compressor = Compressor(rate)
            loop = asyncio.get_running_loop()
            while offset < size:
                piece = await self._piece(key, offset)
                about, packed = await compressor.pack(memoryview(piece))
                view, began = memoryview(packed), loop.time()
                await stream.send({"offset": offset, **about}, view)
                rate.measured(view.nbytes, loop.time() - began)
                offset += len(piece)
            answer, _ = await stream.receive()
            return {int(node): text for node, text in answer["failed"].items()}

    async def _piece(self, key: str, offset: int) -> bytes:
        """Return the next piece of a blob, as soon as there is one."""
        while not (piece := self._store.read(key, offset, PIECE)):
            try:
                await asyncio.wait_for(self._store.growth(key), STALLED)
            except TimeoutError:
                raise _Stalled from None
        return piece

    async def take(self, message: Message, stream: Stream) -> None:
        """Take a blob that a peer gives, and pass it on."""
        key, size = message["blob"], message["size"]
        offset = self._store.arrived(key)
        await stream.send({"have": offset})
        passing = asyncio.create_task(self.pass_on(key, size, message["to"]))
        try:
            while offset < size:
                header, payload = await stream.receive(PIECE)
                piece = expand(header, memoryview(payload), PIECE)
                self._store.add(key, header["offset"], piece, size)
                offset = header["offset"] + piece.nbytes
            failed = await passing
        except BaseException:
            passing.cancel()
            raise
        if key not in self._store:
            failed[message["node"]] = "there is no room for it, or it was damaged on the way"
        await stream.send({"failed": {str(node): text for node, text in failed.items()}})


class _Stalled(Exception):
    """A blob does not arrive."""
