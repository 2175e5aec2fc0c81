"""Links that break: what the person is told, and whether it is the way or the node that is gone.

Where only this machine has lost a node, runs go on there, and the connection is made again. Where
the other nodes do not reach it either, it is lost: its peers would wait for it forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from jupyter_sky.cluster.connection import Connection
from jupyter_sky.errors import SkyError

_BRIEF = 0.5
"""Seconds for which a broken link is not worth a word."""

_ASK_EVERY = 2.0
_ASK_WITHIN = 8.0
_WITNESSES = 3
_OPINIONS = 2  # one time after the other, before a node is given up


class Links:
    """The links of a cluster.

    Parameters
    ----------
    spawn
        Has a coroutine run in the background.
    notice
        Told what the person should know.
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        notice: Callable[[str], None],
    ) -> None:
        self._connections: Sequence[Connection] = ()
        self._spawn = spawn
        self._notice = notice
        self._said: dict[Connection, float] = {}

    def watch(self, connections: Sequence[Connection]) -> None:
        """Have these be the links of the cluster."""
        self._connections = connections
        for connection in connections:
            connection.on_link = self._changed

    @property
    def note(self) -> str:
        """What there is to say of them; empty if all is well."""
        broken = [each for each in self._connections if each in self._said]
        if not broken:
            return ""
        if len(broken) == len(self._connections) > 1:
            who = "any node"
        else:
            who = ", ".join(each.name for each in broken)
        return f"no connection to {who}; what runs there goes on, and I keep trying"

    def _changed(self, connection: Connection) -> None:
        if not connection.is_up:
            self._spawn(self._watch(connection))
            return
        since = self._said.pop(connection, None)
        if since is not None:
            seconds = asyncio.get_running_loop().time() - since
            more = f"; {self.note}" if self._said else ""
            self._notice(f"connected to {connection.name} again after {seconds:.0f} s{more}")

    async def _watch(self, connection: Connection) -> None:
        since = connection.broken_since
        await asyncio.sleep(_BRIEF)
        if since is None or connection.broken_since != since or connection.is_over:
            return
        self._said[connection] = since
        self._notice(self.note)
        opinions = 0
        while connection.broken_since == since and not connection.is_over:
            opinions = opinions + 1 if await self._is_gone(connection) else 0
            if opinions == _OPINIONS:
                connection.give_up("is gone: neither this notebook nor the other nodes reach it")
                return
            if not opinions:
                await asyncio.sleep(_ASK_EVERY)

    async def _is_gone(self, connection: Connection) -> bool:
        """Ask other nodes whether they reach a node; nobody to ask means nothing."""
        peer = connection.machine.nodes[0].peer()
        witnesses = [each for each in self._connections if each.is_up][:_WITNESSES]
        said = await asyncio.gather(
            *(each.request("reach", peers=[peer], within=_ASK_WITHIN) for each in witnesses),
            return_exceptions=True,
        )
        answers = [each["failed"] for each in said if isinstance(each, dict)]
        for each in said:
            if isinstance(each, BaseException) and not isinstance(each, SkyError):
                raise each
        return bool(answers) and all(answers)


async def check_ways(connections: Sequence[Connection]) -> None:
    """Refuse a cluster whose nodes do not reach each other.

    Raises
    ------
    SkyError
        Which node does not reach which: the process group would wait for them in vain.
    """
    if len(connections) < 2:
        return
    nodes = {each.machine.nodes[0].node: each.machine.nodes[0] for each in connections}
    peers = [node.peer() for node in nodes.values()]

    async def look(connection: Connection) -> list[str]:
        here = connection.machine.nodes[0]
        others = [peer for peer in peers if peer["node"] != here.node]
        answer = await connection.request("reach", peers=others)
        return [
            f"{here.host} does not reach {nodes[int(node)].host} at {nodes[int(node)].addr} ({why})"
            for node, why in answer["failed"].items()
        ]

    found = [each for part in await asyncio.gather(*map(look, connections)) for each in part]
    if found:
        more = f", and {len(found) - 4} more" if len(found) > 4 else ""
        raise SkyError(
            f"nodes cannot talk to each other: {'; '.join(found[:4])}{more}. Let their firewalls "
            "pass TCP between them, or choose another network with `%config Sky.interface`."
        )
