"""A few of the steps that ``python -m tests.chance`` makes for as long as is wanted."""

from __future__ import annotations

from tests.chance.machine import run


def test_by_chance() -> None:
    run(seed=3, clusters=3, steps=20)
