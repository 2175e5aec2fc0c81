"""A person's first five minutes: the quickstart runs, and shows what its saved outputs show."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"


def text_of(cell: nbformat.NotebookNode) -> str:
    """Return what a cell shows, as text."""
    parts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {}).get("text/plain", "")
        parts.append(output.get("text", "") + data + "\n".join(output.get("traceback", [])))
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts))


def code(notebook: nbformat.NotebookNode, beginning: str) -> nbformat.NotebookNode:
    return next(
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.source.startswith(beginning)
    )


@pytest.fixture(scope="module")
def done() -> nbformat.NotebookNode:
    notebook = nbformat.read(QUICKSTART, as_version=4)
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    return notebook


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "saved"])
def test_what_it_shows(fresh: bool, request: pytest.FixtureRequest) -> None:
    saved = nbformat.read(QUICKSTART, as_version=4)
    notebook = request.getfixturevalue("done") if fresh else saved
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
    assert "ended, nothing of it is left" in text_of(code(notebook, "%sky down"))


def test_the_saved_file_names_no_machine() -> None:
    text = QUICKSTART.read_text()
    assert "widget-view" not in text
    for trace in ("/home/", "/root/", "/tmp/", "/work/"):
        assert trace not in text
