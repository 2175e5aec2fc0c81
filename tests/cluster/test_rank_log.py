"""Parts of a rank's log, as they are shown."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from jupyter_sky.cluster.rank_log import LogEntry, LogPart, LogPlace, LogReader
from jupyter_sky.errors import NoConnection
from jupyter_sky.transport.event_loop import call
from tests.waiting import PATIENCE, until


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
    """A node of two ranks that answers when all nodes were asked, and it is free."""

    name = "node"

    def __init__(self, first: int, asked: asyncio.Barrier | None = None) -> None:
        self.ranks = frozenset({first, first + 1})
        self.free = asyncio.Event()
        self.free.set()
        self.left: list[dict[str, Any]] = []
        self._asked = asked
        self._is_asked = False

    async def request(self, op: str, rank: int, **fields: Any) -> dict[str, Any]:
        if fields.get("follows") is False:
            self.left.append(fields)
            raise NoConnection("it has gone away.")
        assert not self._is_asked, "a slow link is asked for two logs at once"
        assert fields["within"] is None, "one that answers late would be taken for one that ended"
        self._is_asked = True
        try:
            async with asyncio.timeout(PATIENCE):
                if self._asked:
                    await self._asked.wait()
                await self.free.wait()
        finally:
            self._is_asked = False
        if rank == 3:
            raise NoConnection("it does not answer.")
        log = {"pieces": [], "runs": [], "clock": 0.0}
        return {"data": b"log", "start": fields["offset"], "size": fields["offset"] + 3, **log}


def reader_of(*nodes: Node) -> LogReader:
    """Return what follows logs of these nodes."""
    ranks = sorted(rank for each in nodes for rank in each.ranks)
    controller: Any = SimpleNamespace(connections=nodes, ranks=ranks)
    controller.connection = lambda rank: next(each for each in nodes if rank in each.ranks)
    return LogReader(controller, follows=True)


def test_all_nodes_are_asked_for_logs_at_once_and_each_for_one_at_a_time() -> None:
    asked = asyncio.Barrier(2)
    nodes = [Node(0, asked), Node(2, asked)]
    reader = reader_of(*nodes)
    read = reader.read(dict.fromkeys(range(4), LogPlace()))
    assert [*read] == [0, 1, 2, 3]
    assert all(isinstance(read[rank], LogPart) for rank in (0, 1, 2))
    assert isinstance(read[3], NoConnection)
    reader.leave([0, 1, 2, 9])
    # Who wants to leave does not wait for nodes that do not answer.
    said = [each for node in nodes for each in node.left]
    assert [(each["within"] <= 1, each["link_within"]) for each in said] == [(True, 0)] * 2


def test_logs_of_other_nodes_go_on_while_one_does_not_answer() -> None:
    slow = Node(4)
    reader = reader_of(Node(0), slow)
    places = dict.fromkeys((0, 4, 5), LogPlace())
    slow.free.clear()
    for offset in (0, 3):
        places[0] = LogPlace(offset=offset)
        [(rank, part)] = reader.read(places).items()
        assert isinstance(part, LogPart)
        assert (rank, part.end) == (0, offset + 3)
    call(slow.free.set)
    late = until(lambda: {4, 5} <= (found := reader.read(places)).keys() and found)
    assert late and all(isinstance(late[rank], LogPart) for rank in (4, 5))

    slow.free.clear()
    reader.read(places)
    reader.leave(places)  # without what it still waits for
    assert len(slow.left) == 1
    assert not slow._is_asked
