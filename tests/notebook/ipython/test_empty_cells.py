"""A cell of nothing but ``%%sky`` and its options."""

from __future__ import annotations

from tests.notebook.conftest import Notebook


def test_a_cell_without_code_starts_the_cluster(notebook: Notebook) -> None:
    notebook.run("%%sky --nodes 1 --cluster empty-cell")
    assert "empty-cell" in notebook.run("%sky status")
    assert notebook.run("%%sky --cluster empty-cell\n\n") == ""
    notebook.run("%sky down empty-cell")
    assert "--nodes" in notebook.run("%%sky -h")
    assert notebook.run("print(f'{1}%%sky')") == "1%%sky\n"
