"""The blobs of a node: whole or not there, within a limit."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.node.blobs.partial_blob import drop_unfinished, new_part, write_blob
from jupyter_sky.node.blobs.store import BlobStore, store_of_node
from jupyter_sky.serialization.blobs import digest, map_privately
from jupyter_sky.transport.frames import ProtocolError
from tests.waiting import PATIENCE, until


def put(store: BlobStore, data: bytes, key: str | None = None, piece: int = 1000) -> str:
    key = key or digest(data)
    for offset in range(0, len(data), piece):
        store.add(key, offset, memoryview(data)[offset : offset + piece], len(data))
    return key


def test_a_blob_is_there_when_all_of_it_is(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 10**9)
    data = memoryview(bytes(range(256)) * 100)
    key = digest(data)
    store.add(key, 0, data[:1000], len(data))
    assert key not in store
    store.add(key, 1000, data[1000:], len(data))
    assert key in store
    assert (tmp_path / key).read_bytes() == data


def test_a_blob_that_broke_off_can_be_sent_again(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 10**9)
    data = bytes(range(256)) * 100
    store.add(digest(data), 0, memoryview(data)[:1000], len(data))
    key = put(store, data)
    assert key in store
    assert [path.name for path in tmp_path.iterdir()] == [key]


def test_what_stays_unfinished_takes_no_room_for_ever(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 10**9)
    data = bytes(range(256)) * 100
    store.add(digest(data), 0, memoryview(data)[:1000], len(data))
    store.drop_stalled(60)
    assert store.arrived(digest(data)) == 1000
    store.drop_stalled(0)
    assert not list(tmp_path.iterdir())
    assert store.arrived(digest(data)) == 0
    # Who sends it does not know that yet.
    store.add(digest(data), 1000, memoryview(data)[1000:2000], len(data))
    assert not list(tmp_path.iterdir())
    assert put(store, data) in store


def test_who_waits_for_a_blob_that_there_is_no_room_for_hears_that(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs", 10**9)  # where there is no folder
    data = bytes(1000)

    async def grows() -> bool:
        waiter = store.growth(digest(data))
        put(store, data)
        return await asyncio.wait_for(waiter, PATIENCE)

    async def has_grown() -> bool:
        return await asyncio.wait_for(store.growth(digest(data)), PATIENCE)

    assert not asyncio.run(grows())
    assert not asyncio.run(has_grown())  # also who asks too late
    store.restore()
    put(store, data)
    assert digest(data) in store
    store.drop([digest(data)])
    assert asyncio.run(grows())


def test_two_send_the_same_at_once_and_one_of_them_breaks_off(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 10**9)
    data = bytes(range(256)) * 100
    key, whole = digest(data), memoryview(data)
    store.add(key, 0, whole[:1000], len(data))
    store.add(key, 0, whole[:700], len(data))
    store.add(key, 1000, whole[1000:2000], len(data))
    assert store.arrived(key) == 2000
    for offset in range(700, len(data), 700):
        store.add(key, offset, whole[offset : offset + 700], len(data))
    assert (tmp_path / key).read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == [key]


def test_a_damaged_blob_is_not_kept(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 10**9)
    key = put(store, b"x" * 5000, key=digest(b"something else"))
    assert key not in store
    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_goes_first_and_never_what_is_wanted(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 2500)
    first, second, third = (put(store, bytes([n]) * 1000) for n in range(3))
    store.touch([first])
    assert store.trim(frozenset([third])) == [second]
    assert first in store
    assert third in store
    fourth = put(store, b"4" * 2500)
    assert store.trim(frozenset([fourth])) == [third, first]


def test_what_was_dropped_stays_mapped(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 0)
    key = put(store, b"kept" * 1000)
    mapped = map_privately(tmp_path / key, 4000)
    store.trim()
    assert not (tmp_path / key).exists()
    mapped[:4] = b"mine"
    assert mapped[:8] == b"minekept"


@pytest.mark.parametrize("key", ["../../etc/passwd", "", "ABC", "a/b"])
def test_a_key_that_is_no_digest_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ProtocolError):
        BlobStore(tmp_path, 10**9).add(key, 0, memoryview(b"0123456789"), 10)


def test_no_room_is_no_crash(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 10**9)
    data = b"x" * 5000
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limit[1]))
    try:
        key = put(store, data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert key not in store
    assert list(tmp_path.iterdir()) == []
    assert put(store, data) in store


# What is more than memory has room for


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


def test_what_arrives_while_memory_is_full_lies_on_the_disk(memory: Path, disk: Path) -> None:
    store = BlobStore(memory, 2500, disk, 10**9)
    keys = [put(store, bytes([n]) * 1000) for n in range(4)]
    assert all(key in store for key in keys)
    assert [(memory / key).is_symlink() for key in keys] == [False, False, True, True]
    assert sorted(path.name for path in disk.iterdir()) == sorted(keys[2:])
    for n, key in enumerate(keys):
        assert map_privately(memory / key, 1000)[:] == bytes([n]) * 1000
        assert store.read(key, 0, 5000) == bytes([n]) * 1000
    assert store.trim() == []
    store.remove()
    assert not disk.exists()
    assert not memory.exists()


@pytest.fixture
def small_memory(memory: Path) -> Iterator[Path]:
    """A memory of its own, of 200 KB."""
    if os.getuid():
        pytest.skip("only root can mount one")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(memory)], check=True)
    yield memory
    subprocess.run(["umount", "-l", str(memory)], check=True)


def test_what_arrives_when_others_have_filled_the_memory_lies_on_the_disk(
    small_memory: Path, disk: Path
) -> None:
    """The limit is of the start, when there was room."""
    store = BlobStore(small_memory, 150_000, disk, 10**9)
    (small_memory / "of-others").write_bytes(bytes(150_000))
    data = bytes(range(256)) * 400
    key = digest(data)
    for offset in range(0, len(data), 10_000):
        store.add(key, offset, memoryview(data)[offset : offset + 10_000], len(data))
    assert key in store
    assert (small_memory / key).is_symlink()
    assert (small_memory / key).read_bytes() == data
    assert [each.name for each in disk.iterdir()] == [key]


def test_nothing_stays_of_what_finds_no_room_for_the_link_to_it(
    memory: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(memory, 500, disk, 10**9)
    data = bytes(1000)

    def symlink_to(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "symlink_to", symlink_to)
    store.add(digest(data), 0, memoryview(data), 1000)
    assert digest(data) not in store
    assert not [*memory.iterdir(), *disk.iterdir()]
    monkeypatch.undo()
    store.add(digest(data), 0, memoryview(data), 1000)
    assert store.read(digest(data), 0, 5000) == data


def test_two_arrive_at_once_where_there_is_room_for_one(memory: Path, disk: Path) -> None:
    store = BlobStore(memory, 1500, disk, 10**9)
    blobs = [bytes([n]) * 1000 for n in range(2)]
    for offset in (0, 500):
        for data in blobs:
            piece = memoryview(data)[offset : offset + 500]
            store.add(digest(data), offset, piece, len(data))
    assert [(memory / digest(data)).is_symlink() for data in blobs] == [False, True]


def test_what_ranks_have_written_goes_to_the_disk(memory: Path, disk: Path) -> None:
    store = BlobStore(memory, 1500, disk, 10**9)
    data = [bytes([n]) * 1000 for n in range(3)]
    keys = [digest(each) for each in data]
    for key, content in zip(keys, data, strict=True):
        (memory / key).write_bytes(content)
        store.adopt(key, 1000)
    mapped = map_privately(memory / keys[0], 1000)
    assert store.trim(frozenset([keys[2]])) == []
    until(lambda: (memory / keys[0]).is_symlink() and (memory / keys[1]).is_symlink())
    assert not (memory / keys[2]).is_symlink()
    assert mapped[:] == data[0]
    assert [(memory / key).read_bytes() for key in keys] == data
    assert all(key in store for key in keys)


@pytest.fixture
def full(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room in memory for what ranks write."""
    of_system = Path.write_bytes

    def write_bytes(path: Path, data: Any) -> int:
        if path.parent == memory and not path.is_symlink():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return of_system(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)


@pytest.mark.usefixtures("full")
def test_what_ranks_cannot_write_into_memory_lies_on_the_disk(memory: Path, disk: Path) -> None:
    store = BlobStore(memory, 10**9, disk, 1500)
    keys = []
    for n in range(2):
        data = bytes([n]) * 1000
        keys.append(digest(data))
        write_blob(memory / keys[n], memoryview(data), disk)
        store.adopt(keys[n], 1000)
        assert store.read(keys[n], 0, 5000) == data
    assert store.trim(frozenset(keys[1:])) == keys[:1]
    assert [path.name for path in memory.iterdir()] == keys[1:]
    assert [path.name for path in disk.iterdir()] == keys[1:]


def test_what_a_rank_has_not_finished_on_the_disk_goes_with_it(memory: Path, disk: Path) -> None:
    disk.mkdir()
    part = new_part(memory, writer=7)
    part.symlink_to(disk / part.name)
    part.write_bytes(b"the beginning")
    drop_unfinished(memory, writer=7)
    assert not [*memory.iterdir(), *disk.iterdir()]


def test_a_folder_that_is_in_memory_itself_is_no_disk(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        shared, temporary = Path(memory, "shared"), Path(memory, "tmp")
        for folder in (shared, temporary):
            folder.mkdir()
        store_of_node(tmp_path, shared, 1000)
        assert (tmp_path / "spilled").exists() == (tmp_path.stat().st_dev != shared.stat().st_dev)
        # On many systems /tmp is a memory of its own.
        store_of_node(temporary, tmp_path, 1000)
        assert not (temporary / "spilled").exists()


def test_the_disk_has_a_limit_too(memory: Path, disk: Path) -> None:
    store = BlobStore(memory, 1000, disk, 2500)
    kept, first, second, third = (put(store, bytes([n]) * 1000) for n in range(4))
    store.touch([first])
    assert store.trim(frozenset([third])) == [second]
    assert sorted(path.name for path in disk.iterdir()) == sorted([first, third])
    assert sorted(path.name for path in memory.iterdir()) == sorted([kept, first, third])
    huge = put(store, b"x" * 3000)
    assert not (memory / huge).is_symlink()


def test_what_moves_to_the_disk_can_be_dropped_all_the_while(memory: Path, disk: Path) -> None:
    store = BlobStore(memory, 0, disk, 3_000_000)
    for n in range(20):
        data = bytes([n]) * 2_000_000
        (memory / digest(data)).write_bytes(data)
        store.adopt(digest(data), len(data))
    # All of them begin to move, and all but the last are dropped before most have.
    assert len(store.trim()) == 19
    until(lambda: not list(disk.glob("*.part")) and all(p.is_symlink() for p in memory.iterdir()))
    [left] = memory.iterdir()
    assert left.name == digest(bytes([19]) * 2_000_000)
    assert [path.name for path in disk.iterdir()] == [left.name]
