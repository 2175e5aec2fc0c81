"""Which nodes try to reach which before a cluster is ready."""

from __future__ import annotations

import pytest

from jupyter_sky.cluster.network.health import pairs


@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_each_of_a_few_nodes_tries_each_other(count: int) -> None:
    for index, others in enumerate(pairs(count)):
        assert sorted(others) == [each for each in range(count) if each != index]


@pytest.mark.parametrize("count", [33, 64, 100, 1000])
def test_many_nodes_try_a_few_others_each_and_everybody_the_head(count: int) -> None:
    tried = pairs(count)
    for index, others in enumerate(tried):
        assert index not in others
        assert len(others) == len(set(others)) <= 11
        assert index == 0 or 0 in others
    heard = [sum(index in others for others in tried) for index in range(count)]
    assert min(heard) >= 6


@pytest.mark.parametrize("count", [33, 100, 1000])
def test_no_part_of_many_nodes_is_cut_off_unseen(count: int) -> None:
    tried = pairs(count)
    for size in (1, 2, count // 2, count - 1):
        part = set(range(size))
        crossing = [
            (a, b) for a, others in enumerate(tried) for b in others if (a in part) != (b in part)
        ]
        assert len(crossing) >= min(size, count - size)
