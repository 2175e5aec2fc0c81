"""A user's first five minutes: the quickstart runs, and shows what its saved outputs show."""

from __future__ import annotations

import re

import nbformat
import pytest

from tests.guides import guides
from tests.guides.guides import code, text_of

pytestmark = pytest.mark.timeout(900)  # a whole notebook, on a machine that has other tests to do


@pytest.fixture(scope="module")
def done() -> nbformat.NotebookNode:
    return guides.done("quickstart")


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "saved"])
def test_what_it_shows(fresh: bool, request: pytest.FixtureRequest) -> None:
    notebook = request.getfixturevalue("done") if fresh else guides.saved("quickstart")
    training = text_of(code(notebook, "%%sky --nodes 4"))
    epochs = re.findall(r"^epoch (\d): loss ([\d.]+), accuracy ([\d.]+)$", training, re.M)
    assert [int(number) for number, _, _ in epochs] == list(range(10))
    losses = [float(loss) for _, loss, _ in epochs]
    assert losses[-1] < losses[0] / 4
    found = re.search(r"test accuracy ([\d.]+) on rank 0 of 4", training)
    assert found
    assert float(found[1]) > 0.9
    assert "samples_seen=[3600, 3600, 3600, 3600]" in text_of(code(notebook, "with torch.no_grad"))
    failed = text_of(code(notebook, "%%sky\nif dist"))
    assert "ValueError: this shard has no labels" in failed
    assert "on rank 2 (node 2)" in failed
    assert "tensor([4.])" in text_of(code(notebook, "%%sky\nx = torch.ones"))
    assert "ended; nothing is left running" in text_of(code(notebook, "%sky down"))


def test_the_saved_file_names_no_machine() -> None:
    assert guides.names_no_machine("quickstart")
