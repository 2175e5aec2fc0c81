"""Parts of a rank's log, as they are shown."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from jupyter_sky.cluster import rank_log
from jupyter_sky.cluster.rank_log import LogEntry, LogPart, LogPlace
from jupyter_sky.errors import NoConnection


def test_nothing_is_older_than_what_precedes_it() -> None:
    """The clock of the node was set back."""
    pieces = [(0, 7.0, "stdout"), (4, 3.0, "stderr"), (8, 9.0, "stdout")]
    part = LogPart(0, b"one\ntwo\nsix\n", 0, 12, pieces, [(8, 4.0, "b", "cell")])
    assert [entry.time for entry in part.entries()] == [7.0, 7.0, 7.0, 9.0]


def test_what_a_log_has_not_kept_is_said_where_it_stood() -> None:
    part = LogPart(0, b"the end\n", 5000, 5008, [(4990, 7.0, "stderr")], [], dropped=4000)
    note, shown = part.entries()
    assert (note.stream, note.time) == ("log", 7.0)
    assert note.data == part.note
    assert b"4.00 kB are missing here" in note.data or b"4 kB are missing here" in note.data
    assert shown == LogEntry(0, 7.0, b"the end\n", "stderr")
    whole = LogPart(0, b"all\n", 0, 4, [(0, 7.0, "stdout")], [])
    assert whole.note == b""
    assert len(list(whole.entries())) == 1


class Node:
    """A node of two ranks that answers when all nodes were asked."""

    name = "node"

    def __init__(self, first: int, asked: asyncio.Barrier) -> None:
        self.ranks = frozenset({first, first + 1})
        self._asked = asked
        self._is_asked = False
        self.left: list[dict[str, Any]] = []

    async def request(self, op: str, rank: int, **fields: Any) -> dict[str, Any]:
        if fields.get("follows") is False:
            self.left.append(fields)
            raise NoConnection("it has gone away.")
        assert not self._is_asked, "a slow link is asked for two logs at once"
        self._is_asked = True
        async with asyncio.timeout(60):
            await self._asked.wait()
        self._is_asked = False
        if rank == 3:
            raise NoConnection("it does not answer.")
        log = {"pieces": [], "runs": [], "clock": 0.0}
        return {"data": b"log", "start": fields["offset"], "size": 3, **log}


def test_all_nodes_are_asked_for_logs_at_once_and_each_for_one_at_a_time() -> None:
    async def scenario() -> None:
        asked = asyncio.Barrier(2)
        nodes = [Node(0, asked), Node(2, asked)]
        controller: Any = SimpleNamespace(connections=nodes, ranks=(0, 1, 2, 3))
        controller.connection = lambda rank: next(each for each in nodes if rank in each.ranks)
        read = await rank_log.read_each(controller, dict.fromkeys(range(4), LogPlace()), True)
        assert [*read] == [0, 1, 2, 3]
        assert all(isinstance(read[rank], LogPart) for rank in (0, 1, 2))
        assert isinstance(read[3], NoConnection)
        await rank_log.leave(controller, [0, 1, 2, 9])
        # Who wants to leave does not wait for nodes that do not answer.
        said = [each for node in nodes for each in node.left]
        assert [(each["within"] <= 1, each["link_within"]) for each in said] == [(True, 0)] * 2

    asyncio.run(scenario())
