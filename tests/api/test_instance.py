from __future__ import annotations

from collections.abc import Callable

import pytest

import jupyter_sky as sky
from jupyter_sky.api.instance import Peer


def test_outside_a_cluster_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPUTE_POOL", raising=False)
    assert sky.instance_info() is None


def test_a_rank_knows_its_place(as_rank: Callable[..., None]) -> None:
    as_rank(2, 4, node=1, total_nodes=2, peers=[{"node": 1, "addr": "10.0.0.2", "ranks": [2, 3]}])
    info = sky.instance_info()
    assert info is not None
    assert (info.rank, info.world_size, info.node, info.total_nodes) == (2, 4, 1, 2)
    assert (info.head_addr, info.head_port, info.interface) == ("127.0.0.1", 40123, "lo")
    assert info.peers == (Peer(node=1, addr="10.0.0.2", ranks=(2, 3)),)
    assert not info.is_head
    assert sky.instance_info() is info  # read once


def test_a_new_place_is_seen(as_rank: Callable[..., None]) -> None:
    as_rank(0, generation=1)
    first = sky.instance_info()
    as_rank(0, generation=2)
    second = sky.instance_info()
    assert first is not None and second is not None
    assert (first.generation, second.generation) == (1, 2)
    assert first.is_head


def test_what_a_newer_node_adds_is_left_alone(as_rank: Callable[..., None]) -> None:
    as_rank(1, zone="b")
    info = sky.instance_info()
    assert info is not None and info.rank == 1


@pytest.mark.parametrize("value", ["no JSON", "[]", "{}", '{"peers": [{}]}'])
def test_a_foreign_variable_is_one_sentence(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("COMPUTE_POOL", value)
    with pytest.raises(sky.SkyError, match="COMPUTE_POOL does not describe a cluster"):
        sky.instance_info()
