"""Files that a notebook on this machine writes blobs into, and whose pages are used again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jupyter_sky.node.blobs.rooms import KEPT, BlobRooms
from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.serialization.blobs import digest, map_privately

SIZE = 10_000


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, 3 * SIZE)


@dataclass
class Rooms:
    """The rooms of a store, and what they tell."""

    store: BlobStore
    is_busy: bool = False
    is_short: bool = False
    gone: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rooms = BlobRooms(
            self.store, lambda: self.is_busy, self.gone.extend, lambda: self.is_short
        )

    def make(self, size: int, writer: int | None = None) -> str:
        request = {"blob": "ab", "size": size, "writer": writer or os.getpid()}
        return self.rooms.make(request)["part"]

    def complete(self, part: str, size: int, key: str = "ab") -> bool:
        return self.rooms.complete({"blob": key, "part": part, "size": size})["filled"]

    def fill(self, data: bytes) -> list[str]:
        """Write a blob as a notebook does; return the digests of those that are gone for it."""
        self.gone.clear()
        path = self.store.folder / self.make(len(data))
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()
        key = digest(data)
        assert self.complete(path.name, len(data), key)
        assert (self.store.folder / key).read_bytes() == data
        return list(self.gone)


def values(count: int) -> list[bytes]:
    return [bytes([number]) * SIZE for number in range(count)]


def test_pages_are_used_again_when_runs_have_used_a_blob_and_nobody_maps_it(
    store: BlobStore,
) -> None:
    rooms, folder = Rooms(store), store.folder
    first, second, third, fourth = values(4)
    fourth = fourth[: SIZE * 9 // 10]
    assert rooms.fill(first) == []
    # It was not used yet: it may be of the same push.
    assert rooms.fill(second) == []
    store.note_used([digest(first), digest(second)])
    mapped = map_privately(folder / digest(first), SIZE)
    place = (folder / digest(second)).stat().st_ino
    rooms.is_busy = True
    assert rooms.fill(third) == []
    rooms.is_busy = False
    assert rooms.fill(fourth) == [digest(second)]
    assert (folder / digest(fourth)).stat().st_ino == place
    assert digest(second) not in store
    assert mapped[:] == first
    # What a rank has made since is waited for by a notebook.
    mapped.close()
    store.adopt(digest(first), SIZE)
    assert store.used(SIZE, SIZE) == []


def test_pages_go_back_to_the_system_when_nothing_has_run_for_a_while(store: BlobStore) -> None:
    rooms, folder = Rooms(store), store.folder
    first, second, third = values(3)
    for value in (first, second, third):
        rooms.fill(value)
    # It came over a link, which may be slow.
    sent = b"sent"
    store.add(digest(sent), 0, memoryview(sent), len(sent))
    mapped = map_privately(folder / digest(first), SIZE)
    # No run has used the third yet.
    store.note_used([digest(first), digest(second), digest(sent)])
    asyncio.run(rooms.rooms.give_back(KEPT - 1))
    assert len(list(folder.iterdir())) == 4
    asyncio.run(rooms.rooms.give_back(KEPT))
    assert rooms.gone == [digest(second)]
    left = {digest(first), digest(third), digest(sent)}
    assert {path.name for path in folder.iterdir()} == left
    assert mapped[:] == first
    mapped.close()
    asyncio.run(rooms.rooms.give_back(KEPT))
    assert {path.name for path in folder.iterdir()} == left - {digest(first)}
    # Who needs it again writes it again.
    assert rooms.fill(second) == []
    assert store.has_room_in_memory(SIZE - len(sent))
    assert not store.has_room_in_memory(SIZE)


def test_all_that_nobody_maps_goes_back_at_once_where_memory_is_short(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms, folder = Rooms(store, is_busy=True), store.folder
    mapped, unmapped = values(2)
    sent = b"sent"
    store.add(digest(sent), 0, memoryview(sent), len(sent))
    for value in (mapped, unmapped):
        rooms.fill(value)
    mapping = map_privately(folder / digest(mapped), SIZE)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    store.note_used([digest(each) for each in (mapped, unmapped, sent)])
    rooms.is_short = True
    asyncio.run(rooms.rooms.give_back(0))
    assert len(list(folder.iterdir())) == 3, "a run has just begun, and may map them yet"
    now += 100
    asyncio.run(rooms.rooms.give_back(0))
    assert sorted(rooms.gone) == sorted([digest(unmapped), digest(sent)])
    assert {path.name for path in folder.iterdir()} == {digest(mapped)}
    mapping.close()


def test_a_file_is_the_users_own_and_goes_with_its_writer(store: BlobStore) -> None:
    rooms = Rooms(store)
    writer = subprocess.Popen(["sleep", "600"])
    try:
        part = rooms.make(SIZE, writer.pid)
        assert (store.folder / part).stat().st_mode & 0o777 == 0o600
        rooms.rooms.drop_left()
        assert (store.folder / part).exists()
    finally:
        writer.kill()
        writer.wait()
    rooms.rooms.drop_left()
    assert not (store.folder / part).exists()
    assert not rooms.complete(part, SIZE)


def test_what_was_not_written_to_its_end_is_no_blob(store: BlobStore) -> None:
    rooms = Rooms(store)
    for size in (-1, SIZE):  # the writer says so, or the file is shorter
        part = rooms.make(SIZE)
        assert not rooms.complete(part, size)
        assert list(store.folder.iterdir()) == []


def test_there_is_no_room_above_the_limit_of_memory(store: BlobStore) -> None:
    rooms = Rooms(store)
    assert rooms.make(3 * SIZE + 1) == ""
    # Nor for a file elsewhere.
    assert not rooms.complete("../other", 1)
