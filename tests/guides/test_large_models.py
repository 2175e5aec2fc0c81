"""The guide to large models runs: sharded on two ranks, loaded on three, whole in the notebook."""

from __future__ import annotations

import re

import nbformat
import pytest

from tests.guides import guides
from tests.guides.guides import code, text_of
from tests.installed import skip_without

skip_without("torch")

pytestmark = pytest.mark.timeout(900)  # a whole notebook, on a machine that has other tests to do

NAME = "large-models"
PART = r"([\d,]+) (?:of ([\d,]+) )?parameters are here; .*loss is ([\d.]+)"


@pytest.fixture(scope="module")
def done() -> nbformat.NotebookNode:
    return guides.done(NAME)


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "saved"])
def test_what_it_shows(fresh: bool, request: pytest.FixtureRequest) -> None:
    notebook = request.getfixturevalue("done") if fresh else guides.saved(NAME)
    first = re.findall(rf"│ {PART}", text_of(code(notebook, "%%sky --nodes 2")))
    again = re.findall(rf"│ {PART}", text_of(code(notebook, "%%sky --stdout all\nmodel = sharded")))
    assert (len(first), len(again)) == (2, 3)
    whole = number(first[0][1])
    assert sum(number(part) for part, _, _ in first) == whole
    assert sum(number(part) for part, _, _ in again) == whole
    assert max(float(loss) for _, _, loss in again) < min(float(loss) for _, _, loss in first) < 3
    assert "after step 28" in text_of(code(notebook, "%%sky --stdout all\nmodel = sharded"))
    assert "3 local nodes, 3 ranks" in text_of(code(notebook, "%sky scale 3"))
    written = text_of(code(notebook, "def write"))
    assert written.startswith("Writer 5 tensors\n"), written
    # It may begin with an empty line: roundings differ between processors.
    learned = "The Zen of Python, by Tim Peters\n\nBeautiful is better than ugly.\n"
    assert learned in written, written
    assert "{'step': 8}" in text_of(code(notebook, "again = Writer"))
    assert "nothing is left running" in text_of(code(notebook, "%sky down"))


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_saved_file_names_no_machine() -> None:
    assert guides.names_no_machine(NAME)
