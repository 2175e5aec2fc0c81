"""Whether the nodes of a run still reach each other, while the notebook reaches all of them.

What is wanted: a run whose nodes lose each other should end soon, with their names. PyTorch waits
for a peer that cannot be reached for half an hour by default, and says nothing.

What does not work: having each node try all others, which takes a number of connections that grows
with the square of the nodes.

The solution: every few seconds each agent tries to reach one other node, and the next time another
one. A node that is cut off from all is found at once, and a pair that cannot reach each other when
it is its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError

EVERY = 4.0
"""Seconds from one check to the next, and before the first one of a run."""

_AGAIN_AFTER = 1.0  # seconds, while some nodes do not reach each other
_ASK_WITHIN = 8.0  # seconds
_OPINIONS = 2  # failures of a pair in a row, before it is reported
_MOST = 3  # pairs that are named

Pair = tuple[Connection, Connection]


async def until_cut(
    connections: Callable[[], Sequence[Connection]],
    notify: Callable[[str], None],
    patience: float,
) -> str:
    """Watch nodes until two of them have not reached each other for too long.

    Parameters
    ----------
    connections
        Returns the connections to the nodes.
    notify
        Called with which nodes do not reach each other, and when they do again.
    patience
        Seconds that this may last.

    Returns
    -------
    str
        Which nodes do not reach which, in words.
    """
    loop = asyncio.get_running_loop()
    failing: dict[Pair, tuple[float, int]] = {}  # since when, and how often
    cut: dict[Pair, float] = {}  # since when
    turn = 0
    while True:
        up = [each for each in connections() if each.is_up]
        pairs = _pairs(up, turn) | {pair for pair in failing if not {*pair} - {*up}}
        began = loop.time()
        failed = await _failed(pairs)
        failing = {
            pair: (failing.get(pair, (began, 0))[0], failing.get(pair, (began, 0))[1] + 1)
            for pair in failed
        }
        before, asked = _described(cut), cut.keys() <= pairs
        cut = {pair: since for pair, (since, times) in failing.items() if times >= _OPINIONS}
        text = _described(cut)
        if text and text != before:
            notify(text)
        elif before and not text and asked:
            notify("all nodes reach each other again")
        if cut and loop.time() - min(cut.values()) >= patience:
            return text
        await asyncio.sleep(_AGAIN_AFTER if failing else EVERY)
        turn += 1


def _pairs(up: Sequence[Connection], turn: int) -> set[Pair]:
    """Return which node tries to reach which in this turn: each tries one, and is tried by one."""
    if len(up) < 2:
        return set()
    distance = 1 + turn % (len(up) - 1)
    return {(each, up[(at + distance) % len(up)]) for at, each in enumerate(up)}


async def _failed(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs whose first node does not reach the second."""

    async def fails(pair: Pair) -> bool:
        asked, other = pair
        peers = [other.machine.nodes[0].peer()]
        try:
            answer = await asked.request("reach", peers=peers, within=_ASK_WITHIN, link_within=0.0)
        except SkyError:
            return False  # the notebook does not reach it: that is `health.LinkMonitor`'s work
        return bool(answer["failed"])

    every = list(pairs)
    found = await asyncio.gather(*map(fails, every))
    return [pair for pair, failed in zip(every, found, strict=True) if failed]


def _described(cut: Collection[Pair]) -> str:
    said = []
    for asked, other in cut:
        if (other, asked) not in cut:
            said.append(f"{asked.name} does not reach {other.name}")
        elif asked.name < other.name:
            said.append(f"{asked.name} and {other.name} do not reach each other")
    said.sort()
    more = f" and {len(said) - _MOST} more" * (len(said) > _MOST)
    return ", ".join(said[:_MOST]) + more
