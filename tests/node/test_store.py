"""The blobs of a node: whole or not there, within a limit."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from jupyter_sky.node.store import Store
from jupyter_sky.transport.blobs import digest, map_privately
from jupyter_sky.transport.frames import ProtocolError


def put(store: Store, data: bytes, key: str | None = None, piece: int = 1000) -> str:
    key = key or digest(data)
    for offset in range(0, len(data), piece):
        store.add(key, offset, memoryview(data)[offset : offset + piece], len(data))
    return key


def test_a_blob_is_there_when_all_of_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path, 10**9)
    data = memoryview(bytes(range(256)) * 100)
    key = digest(data)
    store.add(key, 0, data[:1000], len(data))
    assert key not in store
    store.add(key, 1000, data[1000:], len(data))
    assert key in store
    assert (tmp_path / key).read_bytes() == data


def test_a_blob_that_broke_off_can_be_sent_again(tmp_path: Path) -> None:
    store = Store(tmp_path, 10**9)
    data = bytes(range(256)) * 100
    store.add(digest(data), 0, memoryview(data)[:1000], len(data))
    key = put(store, data)
    assert key in store
    assert [path.name for path in tmp_path.iterdir()] == [key]


def test_two_send_the_same_at_once_and_one_of_them_breaks_off(tmp_path: Path) -> None:
    store = Store(tmp_path, 10**9)
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
    store = Store(tmp_path, 10**9)
    key = put(store, b"x" * 5000, key=digest(b"something else"))
    assert key not in store
    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_goes_first_and_never_what_is_wanted(tmp_path: Path) -> None:
    store = Store(tmp_path, 2500)
    first, second, third = (put(store, bytes([n]) * 1000) for n in range(3))
    store.use([first])
    assert store.trim(frozenset([third])) == [second]
    assert first in store
    assert third in store
    fourth = put(store, b"4" * 2500)
    assert store.trim(frozenset([fourth])) == [third, first]


def test_what_was_dropped_stays_mapped(tmp_path: Path) -> None:
    store = Store(tmp_path, 0)
    key = put(store, b"kept" * 1000)
    mapped = map_privately(tmp_path / key, 4000)
    store.trim()
    assert not (tmp_path / key).exists()
    mapped[:4] = b"mine"
    assert mapped[:8] == b"minekept"


@pytest.mark.parametrize("key", ["../../etc/passwd", "", "ABC", "a/b"])
def test_a_key_that_is_no_digest_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ProtocolError):
        Store(tmp_path, 10**9).add(key, 0, memoryview(b"0123456789"), 10)


def test_no_room_is_no_crash(tmp_path: Path) -> None:
    store = Store(tmp_path, 10**9)
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
