"""Broken links: what the user is told, and whether a node is gone or only out of reach from here.

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
"""Seconds for which a broken link is not mentioned."""

_ASK_EVERY = 2.0  # seconds
_ASK_WITHIN = 8.0  # seconds
_TRY_WITHIN = 60.0  # seconds
_MOST = 4  # unreachable nodes that an error names
_WITNESSES = 3  # nodes that are asked
_OPINIONS = 2  # one time after the other, before a node is given up


class LinkMonitor:
    """Watches the links of a cluster.

    Parameters
    ----------
    spawn
        Runs a coroutine in the background.
    notify
        Called with what the user should know.
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        notify: Callable[[str], None],
    ) -> None:
        self._connections: Sequence[Connection] = ()
        self._spawn = spawn
        self._notify = notify
        self._reported: dict[Connection, float] = {}

    def watch(self, connections: Sequence[Connection]) -> None:
        """Take these for the connections of the cluster, in place of those before."""
        self._connections = connections

    @property
    def note(self) -> str:
        """Which nodes have no link, in words; empty if all have."""
        broken = [each for each in self._connections if each in self._reported]
        if not broken:
            return ""
        if len(broken) == len(self._connections) > 1:
            who = "any node"
        else:
            who = ", ".join(each.name for each in broken)
        return f"no connection to {who}; what runs there goes on, and I keep trying"

    def on_link_changed(self, connection: Connection) -> None:
        """Handle that a link broke, or that there is a new one."""
        if not connection.is_up:
            self._spawn(self._watch_broken(connection))
            return
        since = self._reported.pop(connection, None)
        if since is not None:
            seconds = asyncio.get_running_loop().time() - since
            more = f"; {self.note}" if self._reported else ""
            self._notify(f"connected to {connection.name} again after {seconds:.0f} s{more}")

    async def _watch_broken(self, connection: Connection) -> None:
        """Report a link that stays broken, and give the node up if its peers do not reach it."""
        since = connection.broken_since
        await asyncio.sleep(_BRIEF)
        if since is None or connection.broken_since != since or connection.is_over:
            return
        self._reported[connection] = since
        self._notify(self.note)
        opinions = 0
        while connection.broken_since == since and not connection.is_over:
            opinions = opinions + 1 if await self._is_gone(connection) else 0
            if opinions == _OPINIONS:
                connection.declare_lost(
                    "is gone: neither this notebook nor the other nodes reach it"
                )
                return
            if not opinions:
                await asyncio.sleep(_ASK_EVERY)

    async def _is_gone(self, connection: Connection) -> bool:
        """Ask other nodes whether they reach a node; where none can be asked, it is not gone."""
        peer = connection.machine.nodes[0].peer()
        witnesses = [each for each in self._connections if each.is_up][:_WITNESSES]
        answers = await asyncio.gather(
            *(each.request("reach", peers=[peer], within=_ASK_WITHIN) for each in witnesses),
            return_exceptions=True,
        )
        for each in answers:
            if isinstance(each, BaseException) and not isinstance(each, SkyError):
                raise each
        failed = [each["failed"] for each in answers if isinstance(each, dict)]
        return bool(failed) and all(failed)


async def check_network(connections: Sequence[Connection]) -> None:
    """Refuse a cluster whose nodes do not reach each other at any port.

    Raises
    ------
    SkyError
        Which node does not reach which: a process group would wait for them forever.
    """
    if len(connections) < 2:
        return
    nodes = [each.machine.nodes[0] for each in connections]

    async def open_port(connection: Connection, node: Node) -> tuple[int, str, int]:
        callers = len(connections) - 1
        answer = await connection.request("open_door", addr=node.addr, callers=callers)
        return node.node, node.addr, answer["port"]

    async def try_ports(connection: Connection, node: Node) -> dict[int, str]:
        others = [each for each in ports if each[0] != node.node]
        answer = await connection.request("try_doors", doors=others, within=_TRY_WITHIN)
        failed: dict[int, str] = answer["failed"]
        return failed

    ports = await asyncio.gather(*map(open_port, connections, nodes))
    found = await asyncio.gather(*map(try_ports, connections, nodes))
    if trouble := list(_unreachable(nodes, found)):
        more = f", and {len(trouble) - _MOST} more" if len(trouble) > _MOST else ""
        raise SkyError(
            f"nodes cannot talk to each other: {'; '.join(trouble[:_MOST])}{more}. Let their "
            "firewalls pass TCP at all ports between them, since those of a process group are free "
            "ones, or choose another network with `%config Sky.interface`."
        )


def _unreachable(nodes: Sequence[Node], found: Sequence[Mapping[int, str]]) -> Iterator[str]:
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
