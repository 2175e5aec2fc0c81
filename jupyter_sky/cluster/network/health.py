"""Broken links: what the user is told, and whether a node is out of reach from here alone.

If only this machine has lost a node, its runs go on, and the connection is made again. If the other
nodes do not reach it either, its peers would wait for it forever: `control/recovery.py` decides for
how long they may, since that depends on what runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.pending import START_LINK_WITHIN
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_time_ago
from jupyter_sky.providers.base import Node, Provider, takes_interface

_BRIEF = 0.5
"""Seconds for which a broken link is not mentioned."""

_ASK_EVERY = 2.0  # seconds
_TELL_EVERY = 0.25  # seconds
_ASK_WITHIN = 8.0  # seconds
_TRY_WITHIN = 60.0  # seconds
_MOST = 4  # unreachable nodes that an error names
_EVERYONE = 32  # nodes up to which each tries to reach each
_WITNESSES = 3  # other nodes that are asked about one
_OPINIONS = 2  # times in a row that they do not reach it, before it counts as out of reach

Unreached = Callable[[Connection, float], None]
"""Called repeatedly for a node that nobody reaches, with the seconds since its link broke."""


class LinkMonitor:
    """Watches the links of a cluster.

    Parameters
    ----------
    spawn
        Runs a coroutine in the background.
    notify
        Called with what the user should know.
    unreached
        Called for nodes that the others do not reach either.
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        notify: Callable[[str], None],
        unreached: Unreached,
    ) -> None:
        self._connections: Sequence[Connection] = ()
        self._spawn = spawn
        self._notify = notify
        self._on_unreached = unreached
        self._reported: dict[Connection, float] = {}
        self._unreached: set[Connection] = set()

    def watch(self, connections: Sequence[Connection]) -> None:
        """Watch these connections, instead of the former ones."""
        self._connections = connections
        for gone in self._reported.keys() - set(connections):
            del self._reported[gone]
        self._unreached.intersection_update(connections)

    @property
    def note(self) -> str:
        """Which nodes have no link, and since when, in words; empty if all have that are left."""
        broken = [each for each in self._connections if each in self._reported and not each.is_over]
        gone = [each for each in broken if each in self._unreached]
        parts = []
        if gone:
            parts.append(
                f"{', '.join(each.name for each in gone)} cannot be reached since "
                f"{self._since(gone)}, by the other nodes either: waiting for it"
            )
        if cut := [each for each in broken if each not in self._unreached]:
            everyone = len(cut) == len(self._connections) > 1
            who = "any node" if everyone else ", ".join(each.name for each in cut)
            goes_on = "what runs there continues, and jupyter_sky keeps trying to connect"
            # These reasons say what the user has to do.
            if reasons := dict.fromkeys(each.trouble for each in cut if each.is_shut_out):
                goes_on = "; ".join(reasons)
                if not any(each.stands_still for each in cut):
                    goes_on += "; what runs there continues"
            parts.append(f"no connection to {who} since {self._since(cut)}; {goes_on}")
        return "; ".join(parts)

    def _since(self, connections: Sequence[Connection]) -> str:
        """Return the time of day at which the first of the links broke; from any thread."""
        # The loop's clock is the monotonic one.
        now = time.monotonic()
        seconds = now - min(self._reported.get(each, now) for each in connections)
        return format_time_ago(seconds)

    @property
    def unreached(self) -> list[Connection]:
        """The connections to nodes that nobody reaches."""
        return [each for each in self._connections if each in self._unreached]

    def on_link_changed(self, connection: Connection) -> None:
        """Handle that a link broke, or that there is a new one."""
        if not connection.is_up:
            self._spawn(self._watch_broken(connection))
            return
        since = self._reported.pop(connection, None)
        self._unreached.discard(connection)
        if since is not None:
            seconds = asyncio.get_running_loop().time() - since
            more = f"; {note}" if (note := self.note) else ""
            self._notify(f"connected to {connection.name} again after {seconds:.0f} s{more}")

    def end(self, reason: str) -> None:
        """Report why the cluster is lost, in place of what was said of its links."""
        if self._reported:
            self._notify(reason.rstrip("."))

    async def _watch_broken(self, connection: Connection) -> None:
        """Report a link that stays broken, and whether its peers reach the node."""
        since = connection.broken_since
        await asyncio.sleep(_BRIEF)
        if since is None or connection.broken_since != since or connection.is_over:
            return
        if connection not in self._connections:  # its node has left
            return
        self._reported[connection] = since
        self._notify(self.note)
        opinions, told = 0, False
        while connection.broken_since == since and not connection.is_over:
            if connection.is_shut_out and not told:
                told = True
                self._notify(self.note)
            opinions = opinions + 1 if await self._is_out_of_reach(connection) else 0
            if connection.broken_since != since or connection.is_over:
                return
            is_unreached = opinions >= _OPINIONS
            if is_unreached != (connection in self._unreached):
                self._unreached ^= {connection}
                self._notify(self.note)
                if is_unreached:
                    self._spawn(self._tell_unreached(connection, since))
            if is_unreached or not opinions:
                await asyncio.sleep(_ASK_EVERY)

    async def _tell_unreached(self, connection: Connection, since: float) -> None:
        """Report for how long nobody has reached a node, also while its peers are asked again."""
        while connection in self._unreached and connection.broken_since == since:
            if connection.is_over:
                return
            self._on_unreached(connection, asyncio.get_running_loop().time() - since)
            await asyncio.sleep(_TELL_EVERY)

    async def _is_out_of_reach(self, connection: Connection) -> bool:
        """Return whether other nodes do not reach a node either; ``False`` if none can say."""
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


async def check_network(connections: Sequence[Connection], provider: Provider) -> None:
    """Refuse a cluster whose nodes cannot connect to each other at any port.

    Raises
    ------
    SkyError
        Which node does not reach which; a process group would wait forever.
    """
    if len(connections) < 2:
        return
    nodes = [each.machine.nodes[0] for each in connections]
    tried = pairs(len(nodes))
    callers = Counter(index for others in tried for index in others)

    async def open_port(index: int) -> tuple[int, str, int]:
        node = nodes[index]
        answer = await connections[index].request(
            "listen_on_test_port",
            link_within=START_LINK_WITHIN,
            addr=node.addr,
            callers=callers[index],
        )
        return node.node, node.addr, answer["port"]

    async def try_ports(index: int) -> dict[int, str]:
        answer = await connections[index].request(
            "connect_to_test_ports",
            listeners=[ports[other] for other in tried[index]],
            within=_TRY_WITHIN,
            link_within=START_LINK_WITHIN,
        )
        failed: dict[int, str] = answer["failed"]
        return failed

    ports = await asyncio.gather(*map(open_port, range(len(nodes))))
    found = await asyncio.gather(*map(try_ports, range(len(nodes))))
    if trouble := list(_unreachable(nodes, callers, found)):
        more = f", and {len(trouble) - _MOST} more" if len(trouble) > _MOST else ""
        choose = ", or choose another network with `%config Sky.interface`"
        raise SkyError(
            f"nodes cannot connect to each other: {'; '.join(trouble[:_MOST])}{more}. Allow TCP on "
            f"all ports between them in their firewalls, as a process group uses any free port"
            f"{choose if takes_interface(provider) else ''}."
        )


def pairs(count: int) -> list[list[int]]:
    """Return for each of ``count`` nodes the indices of those that it tries to reach.

    With few nodes these are all others. With many they are the head, and those at distances of a
    power of two: this finds a firewall around one node, and one between two halves, and the number
    of connections grows with ``n log n`` instead of ``n²``.
    """
    powers = [1 << power for power in range((count - 1).bit_length())]
    steps = range(1, count) if count <= _EVERYONE else powers
    chosen = [[(index + step) % count for step in steps] for index in range(count)]
    return [
        others if 0 in (index, *others) else [0, *others] for index, others in enumerate(chosen)
    ]


def _unreachable(
    nodes: Sequence[Node], callers: Mapping[int, int], found: Sequence[Mapping[int, str]]
) -> Iterator[str]:
    """Describe for each node which of its callers do not reach it, and why."""
    for index, node in enumerate(nodes):
        reasons: dict[str, list[str]] = {}
        for other, failed in zip(nodes, found, strict=True):
            if node.node in failed:
                reasons.setdefault(failed[node.node], []).append(other.host)
        for why, hosts in reasons.items():
            everyone = len(hosts) == callers[index] > 2
            if everyone:
                yield f"no other node reaches {node.host} at {node.addr} ({why})"
            else:
                do = "do" if len(hosts) > 1 else "does"
                who = ", ".join(hosts)
                yield f"{who} {do} not reach {node.host} at {node.addr} ({why})"
