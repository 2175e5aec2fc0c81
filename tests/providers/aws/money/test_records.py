"""What is kept on this disk of AWS is whole, whoever else writes it at that moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_sky.providers.aws import local_store


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
    return tmp_path


def test_threads_that_ask_aws_the_same_at_once_all_get_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the sidebar's and a cell's do when what was asked before has become old."""
    both_write, rename = threading.Barrier(2), Path.replace

    def wait_and_rename(new: Path, path: Path) -> Path:
        both_write.wait(60)
        return rename(new, path)

    monkeypatch.setattr(Path, "replace", wait_and_rename)
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(local_store.cached, "user", 60.0, ask)
            for ask in (lambda: "arn:one", lambda: "arn:another")
        ]
        answers = {each.result()[0] for each in asked}
    assert answers == {"arn:one", "arn:another"}
    kept, _ = local_store.cached("user", 60.0, lambda: pytest.fail("it is known"))
    assert kept in answers
