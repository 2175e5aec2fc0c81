"""A pool of two ranks that the tests of calls share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import jupyter_sky as sky
from tests.conftest import shared_registry


@pytest.fixture(scope="session")
def shared_pool(workplace: Path) -> Iterator[sky.ComputePool]:
    with shared_registry(workplace):
        pool = sky.ComputePool(nodes=2)
        pool.__enter__()
    yield pool
    with shared_registry(workplace):
        pool.__exit__(None, None, None)


@pytest.fixture
def pool(shared_pool: sky.ComputePool, workplace: Path) -> Iterator[sky.ComputePool]:
    with shared_registry(workplace):
        yield shared_pool
