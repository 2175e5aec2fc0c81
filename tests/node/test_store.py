"""The blobs of a node: whole or not there, within a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_sky.node.store import Store
from jupyter_sky.transport.blobs import digest, map_privately
from jupyter_sky.transport.frames import ProtocolError


def put(store: Store, data: bytes, key: str | None = None, piece: int = 1000) -> str:
    key = key or digest(data)
    for offset in range(0, len(data), piece):
        part = data[offset : offset + piece]
        store.place(key, offset, len(part), len(data))[:] = part
        store.received(key, offset, len(part))
    return key


def test_a_blob_is_there_when_all_of_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path, 10**9)
    data = bytes(range(256)) * 100
    key = digest(data)
    store.place(key, 0, 1000, len(data))[:] = data[:1000]
    store.received(key, 0, 1000)
    assert key not in store
    rest = data[1000:]
    store.place(key, 1000, len(rest), len(data))[:] = rest
    store.received(key, 1000, len(rest))
    assert key in store
    assert (tmp_path / key).read_bytes() == data


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
        Store(tmp_path, 10**9).place(key, 0, 10, 10)


def test_no_room_is_no_crash(tmp_path: Path) -> None:
    store = Store(tmp_path, 10**9)
    key = digest(b"huge")
    size = 2**50
    store.place(key, 0, 10, size)[:] = b"0123456789"
    store.received(key, 0, 10)
    assert key not in store
    assert list(tmp_path.iterdir()) == []
