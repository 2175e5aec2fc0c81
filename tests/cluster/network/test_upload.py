"""Uploads over links that break: what has arrived is not sent again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from jupyter_sky.cluster.network.upload import Uploads
from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.serialization.blobs import PIECE, digest
from jupyter_sky.transport.link import Link

PIECES = 10


class Cable:
    """A link that loses what is sent after so many pieces, and breaks at the last one or later."""

    def __init__(self, store: BlobStore, carries: int = PIECES, breaks: bool = True) -> None:
        self.closed = False
        self.sent = 0
        self._store = store
        self._carries = carries
        self._breaks = breaks

    def send(self, header: dict[str, Any], packed: Any) -> None:
        if self.sent < self._carries:
            whole = memoryview(packed)
            for key, size in header.get("blobs", ()):
                self._store.add(key, 0, whole[:size], size)
                whole = whole[size:]
            if "blob" in header:
                self._store.add(header["blob"], header["offset"], whole, header["size"])
        self.sent += 1

    async def drain(self) -> None:
        self.closed = self._breaks and self.sent == PIECES


@pytest.mark.parametrize("carries", [0, 7, 9])
def test_a_link_that_breaks_behind_the_last_piece_has_not_all_sent_again(
    tmp_path: Path, carries: int
) -> None:
    """All has left then, and what was in buffers on the way is lost."""
    store = BlobStore(tmp_path, 10 * PIECES * PIECE)
    data = os.urandom(PIECES * PIECE)
    key = digest(data)
    cables = [Cable(store, carries)]

    async def request(op: str, **fields: Any) -> dict[str, Any]:
        assert op == "arrived"
        return {"size": store.arrived(fields["blob"])}

    async def upload() -> None:
        uploads = Uploads(request, lambda: cast(Link, cables[-1]))
        await uploads.put({key: memoryview(data)})
        cables.append(Cable(store, breaks=False))
        # As the agent says when the link is there again, or in its answer to a request.
        uploads.note_missing([key])
        await uploads.put({key: memoryview(data)})

    asyncio.run(upload())
    assert key in store
    assert [each.sent for each in cables] == [PIECES, PIECES - carries]


@pytest.mark.parametrize("carries", [0, 2, PIECES])
def test_many_small_blobs_go_together(tmp_path: Path, carries: int) -> None:
    """A message for each would take longer than they do; where a link breaks, none is missing."""
    store = BlobStore(tmp_path, 10 * PIECES * PIECE)
    datas = [os.urandom(20_000) for _ in range(100)]
    blobs = {digest(data): memoryview(data) for data in datas}
    cables = [Cable(store, carries, breaks=False)]
    messages = -(-100 * 20_000 // PIECE)

    async def request(op: str, **fields: Any) -> dict[str, Any]:
        assert op == "arrived"
        return {"size": store.arrived(fields["blob"])}

    async def upload() -> None:
        uploads = Uploads(request, lambda: cast(Link, cables[-1]))
        await uploads.put(blobs)
        assert cables[0].sent == messages
        await uploads.put(blobs)  # nothing leaves a second time
        cables.append(Cable(store, 1000, breaks=False))
        uploads.note_missing([key for key in blobs if key not in store])
        await uploads.put(blobs)

    asyncio.run(upload())
    assert all(key in store for key in blobs)
    lost = 100 - min(carries, messages) * (PIECE // 20_000)
    assert cables[1].sent == max(0, lost)
