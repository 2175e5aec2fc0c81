"""A rank that imports modules of the user's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.rank.namespace.modules import Rank


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Rank(tmp_path)
    for name in set(sys.modules) - before:
        del sys.modules[name]
