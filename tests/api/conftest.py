"""A place in a cluster, as a node says it in COMPUTE_POOL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest


def topology(rank: int = 0, world_size: int = 4, **changes: Any) -> str:
    """COMPUTE_POOL of a rank that has a node of this machine to itself."""
    values = {
        "cluster": "demo",
        "task_id": "sky-1",
        "generation": 1,
        "node": rank,
        "total_nodes": world_size,
        "rank": rank,
        "world_size": world_size,
        "local_rank": 0,
        "local_world_size": 1,
        "head_addr": "127.0.0.1",
        "head_port": 40123,
        "accelerators": 0,
        "shared_accelerators": False,
        "interface": "lo",
        "peers": [
            {"node": node, "addr": "127.0.0.1", "ranks": [node]} for node in range(world_size)
        ],
    }
    return json.dumps({**values, **changes})


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stand at a place in a cluster until the test ends."""

    def stand(rank: int = 0, world_size: int = 4, **changes: Any) -> None:
        monkeypatch.setenv("COMPUTE_POOL", topology(rank, world_size, **changes))

    return stand
