"""Fetches the recordings of ranks, and measures the differences of their nodes' clocks."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.profiling import (
    PACKED_SIZE,
    PLAIN_SIZE,
    MemoryRecord,
    RecordedAnswer,
    RecordKind,
    TorchRecord,
)
from jupyter_sky.transport.protocol.shape import check_for

_PART = 1024 * 1024  # bytes
_ANSWER_WITHIN = 20.0
_LINK_WITHIN = 5.0
_ASKED = 5  # measurements of the clock; the quickest answer counts

_CHECKS = {"torch": check_for(TorchRecord), "memory": check_for(MemoryRecord)}


@dataclass(frozen=True)
class Fetched:
    """The recordings of ranks.

    Attributes
    ----------
    by_rank
        The records, whose type depends on their kind.
    ahead
        For each rank, by how many nanoseconds the clock of its node is ahead of the clock here.
    missing
        Ranks without a recording.
    """

    by_rank: dict[int, Any]
    ahead: dict[int, int]
    missing: tuple[int, ...]


async def fetch(
    controller: Controller, run: str, kind: RecordKind, ranks: Sequence[int]
) -> Fetched:
    """Return the recordings of ranks in a run."""
    by_rank: dict[int, Any] = {}
    ahead: dict[int, int] = {}

    async def fetch_from(connection: Connection) -> None:
        here = [rank for rank in ranks if rank in connection.ranks]
        clock = await _ahead(connection, run, kind, here[0]) if here else 0
        for rank in here:
            record = _unpacked(await _data(connection, run, kind, rank))
            if record is not None and _CHECKS[kind](record):
                by_rank[rank], ahead[rank] = record, clock

    await asyncio.gather(*map(fetch_from, controller.connections))
    missing = tuple(rank for rank in ranks if rank not in by_rank)
    return Fetched(dict(sorted(by_rank.items())), ahead, missing)


async def _data(connection: Connection, run: str, kind: RecordKind, rank: int) -> bytes:
    data = bytearray()
    while True:
        part = await _part(connection, run, kind, rank, len(data), _PART)
        if part is None or not part[0]:
            return bytes(data)
        data += part[0]
        if len(data) >= min(part[1], PACKED_SIZE):
            return bytes(data)


async def _ahead(connection: Connection, run: str, kind: RecordKind, rank: int) -> int:
    """Return by how much a node's clock is ahead, from its quickest answer."""
    quickest, ahead = float("inf"), 0
    for _ in range(_ASKED):
        before = time.time_ns()
        part = await _part(connection, run, kind, rank, 0, 0)
        after = time.time_ns()
        if part is not None and after - before < quickest:
            quickest, ahead = after - before, part[2] - (before + after) // 2
    return ahead


async def _part(
    connection: Connection, run: str, kind: RecordKind, rank: int, offset: int, limit: int
) -> tuple[bytes, int, int] | None:
    try:
        answer = await connection.request(
            "recorded",
            within=_ANSWER_WITHIN,
            link_within=_LINK_WITHIN,
            run=run,
            rank=rank,
            kind=kind,
            offset=offset,
            limit=limit,
        )
    except SkyError:
        return None
    part = cast(RecordedAnswer, answer)
    return part["data"], part["size"], part["clock"]


def _unpacked(data: bytes, largest: int = PLAIN_SIZE) -> Any:
    """Return a record; ``None`` if it is malformed or too large."""
    unpack = zlib.decompressobj()
    try:
        plain = unpack.decompress(data, largest)
        return None if not unpack.eof or not plain else json.loads(plain)
    except (zlib.error, ValueError, RecursionError):
        return None
