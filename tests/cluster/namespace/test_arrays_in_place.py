"""Arrays and tensors that ranks or the notebook change in place."""

from __future__ import annotations

import pytest

from tests.cluster.namespace.notebook import Notebook, open_notebook


@pytest.fixture
def notebook(shared, monkeypatch) -> Notebook:
    return open_notebook(shared.cluster, monkeypatch)


def test_of_large_arrays_that_are_equal_each_is_changed_by_itself(notebook) -> None:
    notebook.here("import numpy; both = [numpy.zeros(100_000) for _ in range(2)]")
    notebook.there("both[0][0] = 1\nnew = [numpy.zeros(100_000) for _ in range(2)]", out=["new"])
    assert notebook.ask("both[1][0].item()") == [0.0] * 4
    notebook.here("new[0][0] = 1")
    assert notebook.names["new"][1][0] == 0
