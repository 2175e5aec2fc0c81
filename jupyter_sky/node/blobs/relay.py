"""Relays blobs from agent to agent, along a tree, even while they are still arriving.

The notebook sends a blob to one agent, whatever the number of nodes. An agent that passes it on
reads as much as has arrived so far. If a connection breaks it is made again, and the receiver says
how much it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jupyter_sky.node.blobs.store import STALLED, BlobStore
from jupyter_sky.node.network.peers import HANDSHAKE_WITHIN, PeerAgents, PeerStream
from jupyter_sky.serialization.blobs import PIECE
from jupyter_sky.transport.compression import Compressor, LinkRate, expand
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.protocol.topology import AgentAddress

_BRANCHES = 2
_TRIES = 3


class BlobRelay:
    """Passes blobs on to other agents.

    Parameters
    ----------
    store
        The blobs of this node.
    peers
        The other agents.
    """

    def __init__(self, store: BlobStore, peers: PeerAgents) -> None:
        self._store = store
        self._peers = peers
        self._rates: dict[int, LinkRate] = {}

    async def pass_on(
        self, key: str, size: int, receivers: Sequence[AgentAddress]
    ) -> dict[int, str]:
        """Send a blob, which may still be arriving, to other agents.

        Parameters
        ----------
        key, size
            Its digest, and its size in bytes.
        receivers
            The agents that should get it, some from here and the others from those.

        Returns
        -------
        dict
            The node of each agent that did not get it, and why.
        """
        failed: dict[int, str] = {}
        branches = [receivers[start::_BRANCHES] for start in range(_BRANCHES)]
        for part in await asyncio.gather(
            *(self._send_to_branch(key, size, branch) for branch in branches if branch)
        ):
            failed.update(part)
        return failed

    async def receive(self, message: Message, stream: PeerStream) -> None:
        """Receive a blob from a peer, and pass it on."""
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

    async def _send_to_branch(
        self, key: str, size: int, branch: Sequence[AgentAddress]
    ) -> dict[int, str]:
        """Send a blob to the first of a group of agents, which sends it to the others."""
        first, *others = branch
        trouble = "it could not be reached"
        for _ in range(_TRIES):
            try:
                return await self._send(key, size, first, others)
            except (OSError, ProtocolError) as error:
                trouble = str(error) or "it did not answer"
            except _Stalled:
                return {peer["node"]: "the blob did not arrive here" for peer in branch}
        if not others:
            return {first["node"]: trouble}
        # The others may be reachable: one of them replaces it.
        return {first["node"]: trouble, **await self.pass_on(key, size, others)}

    async def _send(
        self, key: str, size: int, peer: AgentAddress, others: Sequence[AgentAddress]
    ) -> dict[int, str]:
        async with self._peers.connect(peer) as stream:
            about = {"blob": key, "size": size, "node": peer["node"], "to": others}
            await stream.send({"op": "blob", **about})
            answer, _ = await asyncio.wait_for(stream.receive(), HANDSHAKE_WITHIN)
            offset = answer["have"]
            rate = self._rates.setdefault(peer["node"], LinkRate())
            compressor = Compressor(rate)
            loop = asyncio.get_running_loop()
            while offset < size:
                piece = await self._next_piece(key, offset)
                about, packed = await compressor.pack(memoryview(piece))
                view, began = memoryview(packed), loop.time()
                await stream.send({"offset": offset, **about}, view)
                rate.measured(view.nbytes, loop.time() - began)
                offset += len(piece)
            answer, _ = await stream.receive()
            return {int(node): text for node, text in answer["failed"].items()}

    async def _next_piece(self, key: str, offset: int) -> bytes:
        """Return the piece of a blob at an offset, as soon as it has arrived."""
        while not (piece := self._store.read(key, offset, PIECE)):
            try:
                has_grown = await asyncio.wait_for(self._store.growth(key), STALLED)
            except TimeoutError:
                raise _Stalled from None
            if not has_grown:
                raise _Stalled
        return piece


class _Stalled(Exception):
    """A blob has stopped arriving."""
