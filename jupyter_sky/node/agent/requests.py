"""What changes in a node while its cluster goes on: ranks come and go, and agents that it meets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from jupyter_sky.node.network import interfaces
from jupyter_sky.transport.frames import Message

if TYPE_CHECKING:
    from jupyter_sky.node.agent.server import Agent


class Changes:
    """Does what a client asks for that changes the cluster.

    Parameters
    ----------
    agent
        The agent of the node.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._door: Message = {}

    @property
    def requests(self) -> dict[str, Callable[[Message], Message | Awaitable[Message]]]:
        """What can be asked for."""
        return {
            "abandon": self._on_abandon,
            "enlist": self._on_enlist,
            "discharge": self._on_discharge,
            "authority": self._on_authority,
            "admit": self._on_admit,
        }

    async def _on_abandon(self, message: Message) -> Message:
        """Have ranks let go of a group that does not come to be."""
        await self._agent.supervisor.abandon(message["patience"])
        return {}

    def _on_enlist(self, message: Message) -> Message:
        """Have more ranks."""
        self._agent.devices.update(devices_of(message["ranks"]))
        self._agent.supervisor.enlist(message["ranks"])
        return {}

    async def _on_discharge(self, message: Message) -> Message:
        """Have fewer ranks."""
        await self._agent.supervisor.discharge(message["ranks"])
        return {}

    def _on_authority(self, message: Message) -> Message:
        """Say who signs for those that are let in."""
        peers = self._agent.peers
        return {"authority": peers.authority if peers else ""}

    async def _on_admit(self, message: Message) -> Message:
        """Let other agents in that come to the cluster."""
        if self._agent.peers:
            self._agent.peers.trust(message["authority"])
            return self._door
        # Alone so far, it was nobody's peer, and there was no way to decide where it stands.
        addr, interface = interfaces.place(message["peer"], self._agent.spec["interface"])
        port = await self._agent.meet(message["credentials"]).listen(addr)
        self._door = {"addr": addr, "interface": interface, "port": port}
        return self._door


def devices_of(places: list[dict[str, Any]]) -> dict[int, int]:
    """Return the GPU of each rank that has one, from ``rank`` and ``env`` of each."""
    name = "CUDA_VISIBLE_DEVICES"
    ids = {place["rank"]: place["env"].get(name, "") for place in places}
    return {rank: int(each) for rank, each in ids.items() if each.isdigit()}
