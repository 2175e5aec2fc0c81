"""Which names of a notebook get to the ranks of its cells, as its person sees it."""

from __future__ import annotations

import pytest

from tests.notebook.conftest import Notebook


@pytest.fixture
def notebook(notebook: Notebook) -> Notebook:
    notebook.run("%sky up --nodes 2")
    return notebook


def test_names_that_ipython_has_as_well_are_the_persons_once_assigned(notebook: Notebook) -> None:
    notebook.run("open = lambda path: f'opened {path}'\ndisplay, exit, _ = 1, 2, 3")
    assert notebook.run("%%sky\nprint(open('x'), display, exit, _)") == "opened x 1 2 3\n"


def test_names_that_ipython_has_are_those_of_the_rank(notebook: Notebook) -> None:
    notebook.run("'of the notebook'")  # so that it has an `_`
    assert notebook.run("%%sky\nprint(callable(exit), open('/dev/null').name)") == (
        "True /dev/null\n"
    )
    with pytest.raises(NameError, match="'_' is not defined"):
        notebook.run("%%sky\n_")


def test_what_is_deleted_here_is_deleted_there(notebook: Notebook) -> None:
    notebook.run("list, x, y = [1], 2, 3")
    notebook.run("%%sky\nlist, x, y")
    notebook.run("del list\n%xdel x\nglobals().pop('y')")
    assert notebook.run("%%sky\nprint(list((1,)), {'x', 'y'} & {*globals()})") == "[1] set()\n"


def test_a_cell_that_fails_here_deletes_nothing_there(notebook: Notebook) -> None:
    notebook.run("%%sky\ny = 1")
    with pytest.raises(ZeroDivisionError):
        notebook.run("1 / 0; y = 2")
    assert notebook.run("%%sky\nprint(y)") == "1\n"
