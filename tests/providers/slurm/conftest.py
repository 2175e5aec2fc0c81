"""Tests of a process share a real Slurm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.slurm.controller import real_slurm


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[Path]:
    """One Slurm, which tests of other things do not find: their clusters would be unlike others."""
    with real_slurm() as folder:
        place = os.environ.pop("SLURM_CONF")
        yield folder
        os.environ["SLURM_CONF"] = place


@pytest.fixture(scope="module")
def slurm(shared_slurm: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(shared_slurm / "slurm.conf"))
        yield shared_slurm
