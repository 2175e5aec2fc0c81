"""Tests of a process share a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.slurm.controller import real_slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[Path]:
    with real_slurm() as folder:
        yield folder
