"""The quickstart notebook: it runs, and what it was saved with is what it shows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.notebook.kernels import without_colours

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
QUICKSTART = NOTEBOOKS / "quickstart.ipynb"


def headless(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Run a notebook as `make demo` does."""
    return subprocess.run(
        [sys.executable, NOTEBOOKS / "headless.py", source, target],
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    target = tmp_path_factory.mktemp("quickstart") / "quickstart.ipynb"
    done = headless(QUICKSTART, target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy on 360 other images" in done.stdout
    return nbformat.read(target, as_version=4)


@pytest.fixture(params=["executed", "saved"])
def outputs(request: pytest.FixtureRequest) -> dict[str, list[nbformat.NotebookNode]]:
    """The outputs of each cell, when it is run now and as it was saved."""
    if request.param == "saved":
        notebook = nbformat.read(QUICKSTART, as_version=4)
    else:
        notebook = request.getfixturevalue("executed")
    assert notebook.metadata.kernelspec.name == "python3"
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def printed(outputs: list[nbformat.NotebookNode]) -> str:
    return "".join(each.text for each in outputs if each.output_type == "stream")


def shown(outputs: list[nbformat.NotebookNode]) -> list[str]:
    return [each.data["text/plain"] for each in outputs if "data" in each]


def test_training_prints_a_line_an_epoch_and_learns(outputs) -> None:
    lines = printed(outputs["train"]).splitlines()
    epochs = [
        re.fullmatch(r"epoch (\d): loss (\d\.\d{3}), accuracy (\d+\.\d)%", line) for line in lines
    ]
    assert [int(epoch[1]) for epoch in epochs] == list(range(8))
    losses = [float(epoch[2]) for epoch in epochs]
    assert losses[-1] < losses[0] / 4
    assert float(epochs[-1][3]) > 90


def test_the_cluster_says_what_it_is_and_the_last_expression_is_shown(outputs) -> None:
    cluster, last = shown(outputs["train"])
    assert "4 local nodes, 4 ranks on CPU, group formed with torch" in cluster
    assert last == "'4 ranks, connected by gloo'"


def test_values_come_back(outputs) -> None:
    accuracy, losses, seen = printed(outputs["back"]).splitlines()
    assert float(re.search(r"([\d.]+)%", accuracy)[1]) > 90
    assert len(losses.partition(": ")[2].split()) == 8
    assert ast.literal_eval(seen.partition(": ")[2]) == [2880] * 4


def test_the_error_shows_its_rank_and_its_lines(outputs) -> None:
    [error] = outputs["error"]
    assert (error.ename, error.evalue) == ("ValueError", "5 pixels are not numbers")
    traceback = without_colours("\n".join(error.traceback))
    assert "----> 9 check(batch)" in traceback
    assert "----> 3         raise ValueError" in traceback
    assert traceback.endswith("ValueError: 5 pixels are not numbers\non rank 2 (node 2)")
    ranks = re.findall(r"rank (\d) +node (\d) +CPU +idle", printed(outputs["status"]))
    assert ranks == [(str(rank), str(rank)) for rank in range(4)]


def test_the_pool_counts_what_the_notebook_counted(outputs) -> None:
    accuracy = float(re.search(r"([\d.]+)%", printed(outputs["back"]))[1])
    right = int(re.fullmatch(r"(\d+) of 360 are right\n", printed(outputs["pool"]))[1])
    assert round(right / 3.6, 1) == accuracy
    assert shown(outputs["pool"]) == ["[180, 180]"]


def test_nothing_is_left(outputs) -> None:
    assert printed(outputs["down"]).endswith("ended, nothing of it is left\n")


def test_no_cell_writes_to_stderr(outputs) -> None:
    streams = [each.name for cell in outputs.values() for each in cell if "name" in each]
    assert set(streams) == {"stdout"}


def test_nothing_of_the_machine_is_saved() -> None:
    text = QUICKSTART.read_text()
    assert not re.search(r"/(home|root|tmp|Users|opt|usr|var)/|site-packages|\"version\"", text)
    assert "iopub" not in text


def test_a_notebook_that_fails_has_a_status_that_says_so(tmp_path: Path) -> None:
    source, target = tmp_path / "failing.ipynb", tmp_path / "out" / "failing.ipynb"
    cells = [nbformat.v4.new_code_cell(code) for code in ("print('one')", "1 / 0", "print('two')")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), source)
    done = headless(source, target)
    assert done.returncode == 1
    assert "the cell above failed" in done.stderr
    first, second, third = nbformat.read(target, as_version=4).cells
    assert first.outputs[0].text == "one\n"
    assert second.outputs[0].ename == "ZeroDivisionError"
    assert third.outputs == []
