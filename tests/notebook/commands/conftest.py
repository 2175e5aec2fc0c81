"""What is once on a machine: the user's processes, among which `gc` looks for orphans."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def alone() -> Iterator[None]:
    """Let no two processes that run tests look at a time for what was left behind.

    What one has left for `gc` to find, another one's `gc` would remove.
    """
    with (Path(tempfile.gettempdir()) / "jupyter-sky-tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let a test have a registry of its own."""
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "sky"))
