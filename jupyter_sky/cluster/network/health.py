"""Links that break: what the person is told, and whether it is the way or the node that is gone.

Where only this machine has lost a node, runs go on there, and the connection is made again. Where
the other nodes do not reach it either, it is lost: its peers would wait for it forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import Node

_BRIEF = 0.5
"""Seconds for which a broken link is not worth a word."""

_ASK_EVERY = 2.0
_ASK_WITHIN = 8.0
_TRY_WITHIN = 60.0
_MOST = 4  # troubles that are told
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
    """Refuse a cluster whose nodes do not reach each other at any port.

    Raises
    ------
    SkyError
        Which node does not reach which: the process group would wait for them in vain.
    """
    if len(connections) < 2:
        return
    nodes = [each.machine.nodes[0] for each in connections]

    async def open_door(connection: Connection, node: Node) -> tuple[int, str, int]:
        callers = len(connections) - 1
        answer = await connection.request("listen_on_test_port", addr=node.addr, callers=callers)
        return node.node, node.addr, answer["port"]

    async def look(connection: Connection, node: Node) -> dict[int, str]:
        others = [each for each in doors if each[0] != node.node]
        answer = await connection.request(
            "connect_to_test_ports", listeners=others, within=_TRY_WITHIN
        )
        return answer["failed"]

    doors = await asyncio.gather(*map(open_door, connections, nodes))
    found = await asyncio.gather(*map(look, connections, nodes))
    if trouble := list(_described(nodes, found)):
        more = f", and {len(trouble) - _MOST} more" if len(trouble) > _MOST else ""
        raise SkyError(
            f"nodes cannot talk to each other: {'; '.join(trouble[:_MOST])}{more}. Let their "
            "firewalls pass TCP at all ports between them, since those of a process group are free "
            "ones, or choose another network with `%config Sky.interface`."
        )


def _described(nodes: Sequence[Node], found: Sequence[Mapping[int, str]]) -> Iterator[str]:
    """Say of each node who does not reach it, and why."""
    for node in nodes:
        reasons: dict[str, list[str]] = {}
        for other, failed in zip(nodes, found, strict=True):
            if node.node in failed:
                reasons.setdefault(failed[node.node], []).append(other.host)
        for why, hosts in reasons.items():
            everyone = len(hosts) == len(nodes) - 1 > 2
            if everyone:
                yield f"no other node reaches {node.host} at {node.addr} ({why})"
            else:
                do = "do" if len(hosts) > 1 else "does"
                who = ", ".join(hosts)
                yield f"{who} {do} not reach {node.host} at {node.addr} ({why})"
