"""Pieces are compressed where they arrive sooner for it, whatever else the machine does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jupyter_sky.transport.compression import Compressor, LinkRate

EASY = memoryview(b"step 12, loss 0.4711, learning rate 0.001\n" * 10_000)
HARD = memoryview(np.random.default_rng(0).integers(0, 255, 400_000, np.uint8).tobytes())
SLOW, FAST = 1e6, 1e9  # bytes per second


def sizes(link: float, *pieces: memoryview) -> list[int]:
    """Return how many bytes of each piece are sent on a link."""
    rate = LinkRate()
    rate.measured(int(link), 1.0)
    compressor = Compressor(rate)

    async def pack() -> list[int]:
        return [memoryview((await compressor.pack(piece))[1]).nbytes for piece in pieces]

    return asyncio.run(pack())


def test_what_compresses_is_compressed_on_a_slow_link() -> None:
    assert max(sizes(SLOW, *[EASY] * 3)) < 0.1 * EASY.nbytes


def test_what_does_not_compress_is_sent_as_it_is() -> None:
    assert sizes(SLOW, *[HARD] * 3) == [HARD.nbytes] * 3


def test_a_fast_link_is_not_held_up() -> None:
    assert sizes(FAST, *[EASY] * 3) == [EASY.nbytes] * 3


def test_a_thread_that_begins_late_does_not_speak_against_compression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to_thread = asyncio.to_thread

    async def late(function: Callable[..., Any], *args: Any) -> Any:
        def begin() -> Any:
            time.sleep(0.1)  # as long as others had the processor
            return function(*args)

        return await to_thread(begin)

    monkeypatch.setattr(asyncio, "to_thread", late)
    assert max(sizes(SLOW, *[EASY] * 3)) < 0.1 * EASY.nbytes
