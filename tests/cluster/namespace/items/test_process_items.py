"""Settings of the notebook's process, looked at before each run."""

from __future__ import annotations

import decimal
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.cluster.namespace.items.process_items import ProcessItems


def _ignore_warnings() -> None:
    warnings.filterwarnings("ignore", "once more", UserWarning)


def test_what_has_changed_is_found_and_the_rest_is_as_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, str] = {}
    items = ProcessItems(asked)

    def changed_by(change: Callable[[], object]) -> list[str]:
        before = {item.key: item for item in items.find(shares_files=True)}
        assert {item.key: item for item in items.find(shares_files=True)} == before
        change()
        after = items.find(shares_files=True)
        return [item.key for item in after if before.get(item.key) is not item]

    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    with warnings.catch_warnings(), decimal.localcontext():
        asked_for = changed_by(lambda: asked.update(RATE="1"))
        assert asked_for == ["environment variables"]
        assert changed_by(lambda: monkeypatch.setenv("RATE", "2")) == ["environment variables"]
        assert changed_by(lambda: monkeypatch.syspath_prepend(tmp_path)) == ["import paths"]
        assert changed_by(lambda: monkeypatch.chdir(tmp_path)) == ["import paths"]
        assert changed_by(_ignore_warnings) == ["warning filters"]
        assert changed_by(lambda: logging.root.setLevel(logging.ERROR)) == ["log settings"]
        prec = decimal.getcontext().prec + 1
        assert changed_by(lambda: setattr(decimal.getcontext(), "prec", prec)) == [
            "library settings"
        ]
    assert "import paths" not in [item.key for item in items.find(shares_files=False)]
    assert sys.path[0] == str(tmp_path)
