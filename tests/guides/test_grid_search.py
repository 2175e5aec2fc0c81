"""The guide of the grid search runs, and shows what its saved outputs show."""

from __future__ import annotations

import nbformat
import pytest

from tests.guides import guides
from tests.guides.guides import code, text_of
from tests.installed import skip_without

skip_without("distributed")

pytestmark = pytest.mark.timeout(900)  # a whole notebook, on a machine that has other tests to do


@pytest.fixture(scope="module")
def done() -> nbformat.NotebookNode:
    return guides.done("grid-search")


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "saved"])
def test_what_it_shows(fresh: bool, request: pytest.FixtureRequest) -> None:
    notebook = request.getfixturevalue("done") if fresh else guides.saved("grid-search")
    search = text_of(code(notebook, "from sklearn.datasets"))
    assert "60 fits, the best with {'C': 10.0, 'gamma': 0.001}" in search
    assert "accuracy on other digits: 0.97" in search
    assert "['rank-0', 'rank-1']" in text_of(code(notebook, "from joblib"))
    assert "22.5" in text_of(code(notebook, "client = %sky dask"))
    assert "2 nodes" in text_of(code(notebook, "%%sky"))
    assert "ended; nothing is left running" in text_of(code(notebook, "%sky down"))


def test_the_saved_file_names_no_machine() -> None:
    assert guides.names_no_machine("grid-search")
