"""Large values of nodes on this computer: written into their shared memory, and mapped from it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from jupyter_sky.cluster.network.blobs.shared_memory import LEAST, SharedMemory
from jupyter_sky.errors import UsageError
from jupyter_sky.node.blobs.partial_blob import SPILLED
from jupyter_sky.serialization.blobs import digest
from tests.cluster.cells import Cells, start
from tests.faults.parts import attach
from tests.waiting import until

SIZE = 32 * 2**20

FULL = f"""
import errno, numpy, pathlib
first, second = (numpy.full({SIZE}, number, dtype="uint8") for number in (1, 2))
write, written = pathlib.Path.write_bytes, []

def write_one(path, data):
    written.append(path)
    if len(written) > 1:
        raise OSError(errno.ENOSPC, "No space left on device")
    return write(path, data)

pathlib.Path.write_bytes = write_one
"""
"""Has two large values, and room for one of them."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Cells]:
    cells = start(2, framework=False)
    yield cells
    cells.cluster.down()


def value(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, SIZE, dtype=np.uint8)


def blobs(cells: Cells) -> Path:
    return Path(cells.cluster._controller.connections[0].machine.row()["blobs"])


def spilled(cells: Cells) -> Path:
    return Path(cells.cluster._controller.connections[0].machine.row()["folder"], SPILLED)


def test_a_large_value_costs_the_agent_nothing(pair: Cells) -> None:
    pair.run("pass")
    agent = psutil.Process(pair.cluster._controller.connections[0].machine.row()["pid"])
    before = agent.io_counters().write_chars
    pair.namespace["x"] = value(0)
    pair.run("total = int(x.sum(dtype='int64'))", names=["x"])
    assert pair.ask("total") == [int(value(0).sum(dtype="int64"))] * 2
    # Over the link, it would have written all of it.
    assert agent.io_counters().write_chars - before < SIZE / 10
    assert all(each.stat().st_mode & 0o077 == 0 for each in blobs(pair).iterdir())


def test_what_ranks_still_have_stays_as_it_is_when_pages_are_used_again(pair: Cells) -> None:
    for number in range(1, 7):
        pair.namespace["x"] = value(number)
        pair.run(f"if {number} == 2: kept = x", names=["x"])
        assert pair.ask("x[:1000].tolist()") == [value(number)[:1000].tolist()] * 2
    assert pair.ask("kept.tobytes()") == [value(2).tobytes()] * 2
    # The one that is kept, the last one, and the one whose pages are next.
    large = [each for each in blobs(pair).iterdir() if each.stat().st_size == SIZE]
    assert len(large) < 6
    # One whose pages were taken is sent again.
    pair.namespace["x"] = value(3)
    pair.run("pass", names=["x"])
    assert pair.ask("x[-9:].tolist()") == [value(3)[-9:].tolist()] * 2


def test_where_there_is_no_room_to_write_it_goes_over_the_link(
    pair: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", no_room)
    pair.namespace["z"] = value(7)
    pair.run("pass", names=["z"])
    assert pair.ask("z[-9:].tolist()") == [value(7)[-9:].tolist()] * 2
    assert list(blobs(pair).glob("*.part")) == []


def test_what_comes_back_is_the_notebooks_own(pair: Cells) -> None:
    made = f"import numpy\ny = numpy.full({SIZE}, 7, dtype='uint8')"
    found = pair.run(made, values={0: ["y"]})[0]["y"]
    assert (found == 7).all()
    # The node has it: it need not go there.
    before = pair.cluster.sent_bytes
    pair.namespace["same"] = found
    pair.run("pass", names=["same"])
    assert pair.cluster.sent_bytes - before < 100_000
    found[:10] = 1
    assert pair.ask("y[:10].tolist()") == [[7] * 10] * 2
    for number in range(10, 14):
        pair.namespace["x"] = value(number)
        pair.run("pass", names=["x"])
    assert found[:10].tolist() == [1] * 10
    assert (found[10:] == 7).all()


def test_what_a_rank_wrote_before_memory_was_full_does_not_stay_there(pair: Cells) -> None:
    before = {each.name for each in blobs(pair).iterdir()}
    pair.run(FULL, ranks=[0])
    with pytest.raises(UsageError, match="first, second cannot be brought to the notebook: "):
        pair.run("pass", values={0: ["first", "second"]}, ranks=[0])
    pair.run("pathlib.Path.write_bytes = write", ranks=[0])
    assert pair.ask("len(written) > 1", ranks=[0]) == [True]
    until(lambda: {each.name for each in blobs(pair).iterdir()} <= before)
    assert not list(spilled(pair).glob("*"))
    # What was named stays.
    found = pair.run("pass", values={0: ["first"]}, ranks=[0])[0]["first"]
    assert (found == 1).all()


def test_what_memory_has_no_room_for_comes_from_the_disk(pair: Cells) -> None:
    pair.run(FULL, ranks=[0])
    pair.run(
        "numbers = first + second\n"
        "def write_small(path, data):\n"
        "    if pathlib.Path(path).is_symlink(): return write(path, data)\n"
        "    raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "pathlib.Path.write_bytes = write_small",
        ranks=[0],
    )
    found = pair.run("pass", values={0: ["numbers"]}, ranks=[0])[0]["numbers"]
    assert (found == 3).all()
    pair.run("pathlib.Path.write_bytes = write", ranks=[0])
    key = digest(memoryview(found))
    assert (blobs(pair) / key).is_symlink()
    assert [each.name for each in spilled(pair).iterdir()] == [key]


def test_what_changes_while_it_is_written_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    data = bytearray(LEAST)
    key = digest(data)
    data[-1] = 1
    asked: list[dict[str, Any]] = []

    async def request(op: str, **fields: Any) -> dict[str, Any]:
        asked.append({"op": op, **fields})
        if op == "make_room":
            (tmp_path / "1-part.part").touch()
            return {"part": "1-part.part"}
        return {"filled": False}

    shared = SharedMemory(tmp_path, request)
    assert not asyncio.run(shared.write(key, memoryview(data), print))
    assert [each.get("size") for each in asked] == [LEAST, -1]


def test_nothing_is_written_where_the_agent_made_no_file(tmp_path: Path) -> None:
    async def request(op: str, **fields: Any) -> dict[str, Any]:
        return {"part": "../outside", "filled": False}

    data = memoryview(bytearray(LEAST))
    folder = tmp_path / "blobs"
    folder.mkdir()
    assert not asyncio.run(SharedMemory(folder, request).write("ab", data, print))
    assert [each.name for each in tmp_path.iterdir()] == ["blobs"]
    # Nor on another computer.
    assert not asyncio.run(SharedMemory(None, request).write("ab", data, print))
    assert SharedMemory(None, request).read("ab", LEAST) is None


def test_a_cluster_goes_on_whose_shared_memory_was_cleared_away(pair: Cells) -> None:
    pair.namespace |= {"here": value(7), "also": value(8)}
    assert pair.ask("len(here)", names=["here"]) == [SIZE] * 2
    # As systemd does when the last session of a user ends, because the notebook has gone.
    shutil.rmtree(blobs(pair))
    attach(pair.cluster.name).cluster.close()
    run = pair.start("there = here.copy()", values={0: ["there"]})
    run.follow(lambda event: None)
    assert (run.values()[0]["there"] == value(7)).all()
    assert pair.ask("int(also[0])", names=["also"]) == [int(value(8)[0])] * 2
    pair.namespace["again"] = value(7)  # which it has sent before
    assert pair.ask("int(again[0])", names=["again"]) == [int(value(7)[0])] * 2
