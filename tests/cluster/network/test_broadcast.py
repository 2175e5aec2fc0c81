"""Large data: it leaves the notebook once, however many nodes there are."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from jupyter_sky.cluster.network import broadcast
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.local import Local


@pytest.fixture(scope="module")
def many(request: pytest.FixtureRequest):
    """Eight nodes, each with an agent of its own."""
    from tests.cluster.conftest import start

    cells = start(nodes=8, framework=False, provider=Local(machines=8, shares_files=False))
    cells.run("import os, numpy as np")
    yield cells
    cells.cluster.down()


def test_a_blob_leaves_once_for_eight_nodes(many) -> None:
    many.namespace["data"] = np.random.default_rng(0).integers(0, 255, 32_000_000, np.uint8)
    before = many.cluster.sent_bytes
    sums = many.ask("int(data.sum())", names=["data"])
    sent = many.cluster.sent_bytes - before
    assert sums == [int(many.namespace["data"].sum())] * 8
    assert sent <= 1.05 * many.namespace["data"].nbytes


def test_what_nodes_have_does_not_leave_again(many) -> None:
    many.namespace["data"] = np.random.default_rng(1).integers(0, 255, 8_000_000, np.uint8)
    many.run("pass", names=["data"])
    before = many.cluster.sent_bytes
    many.namespace["same"] = many.namespace["data"].copy()
    assert many.ask("bool((same == data).all())", names=["same"]) == [True] * 8
    assert many.cluster.sent_bytes - before < 1_000_000


def test_what_one_node_has_goes_to_the_others_from_there(many) -> None:
    many.namespace["seed"] = np.random.default_rng(2).integers(0, 255, 8_000_000, np.uint8)
    many.run("pass", names=["seed"], ranks=[5])
    before = many.cluster.sent_bytes
    total = int(many.namespace["seed"].sum())
    assert many.ask("int(seed.sum())", names=["seed"]) == [total] * 8
    assert many.cluster.sent_bytes - before < 1_000_000


def test_many_blobs_at_once(many) -> None:
    parts = [np.full(1_000_000, number, np.uint8) for number in range(40)]
    many.namespace["parts"] = parts
    before = many.cluster.sent_bytes
    assert many.ask("[int(part[-1]) for part in parts]", names=["parts"]) == [list(range(40))] * 8
    assert many.cluster.sent_bytes - before <= 1.1 * sum(part.nbytes for part in parts)


def test_where_one_node_cannot_get_it_the_others_are_not_sent_more() -> None:
    stopped = []

    async def fail() -> None:
        raise SkyError("a node has no room")

    async def send() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            stopped.append(True)

    async def scenario() -> None:
        with pytest.raises(SkyError, match="no room"):
            await broadcast._all_or_none(send(), fail(), send())
        assert stopped == [True, True]

    asyncio.run(scenario())
