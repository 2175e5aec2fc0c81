"""``%sky auto``: which cells it sends, and that it goes as it came."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.ipython.auto_cells import runs_locally
from tests.notebook.conftest import Kernel, Notebook


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "# nothing\n\n# at all\n",
        "# local\nx = 1\n",
        "#LOCAL\nx = 1\n",
        "%%time\nx = 1\n",
        "%%sky --nodes 2\nx = 1\n",
        "%matplotlib inline\n",
        "%pip install numpy\n!ls\n\n# and\n%cd ..\n",
        "!pip install \\\n    numpy\n",
        "  %env\n",
        "model?\n",
        "??model\n",
        "%sky down\nx = 1\n",
        "x = 1\nif x:\n    %sky status\n",
        "state = %sky status\n",
        "x = \n",
    ],
)
def test_some_cells_belong_to_the_notebook(cell: str) -> None:
    assert runs_locally(cell)


@pytest.mark.parametrize(
    "cell",
    [
        "x = 1\n",
        "# a comment\nx = 1\n",
        "x = 1  # local\n",
        "# locality matters\nx = 1\n",
        "%matplotlib inline\nx = 1\n",
        "files = !ls\n",
        "x = 1  # why?\n",
        "await something()\n",
        "def sky(): pass\n",
        "text = '''\n%sky down\n'''\n",
    ],
)
def test_others_go_to_the_cluster(cell: str) -> None:
    assert not runs_locally(cell)


WHERE = "import os\nprint(os.environ.get('SKYPILOT_NODE_RANK'))"


@pytest.fixture
def auto(shared_shell: Notebook) -> Iterator[Notebook]:
    shared_shell.run("%sky up --nodes 1")
    shared_shell.run("%sky auto on")
    yield shared_shell
    shared_shell.run("%sky auto off")


def test_cells_run_on_the_cluster_until_it_is_off(auto: Notebook) -> None:
    assert auto.run(WHERE) == "0\n"
    assert auto.run(f"# local\n{WHERE}") == "None\n"
    assert "off" in auto.run("%sky auto off")
    assert auto.run(WHERE) == "None\n"


def test_it_says_what_it_does(notebook: Notebook) -> None:
    assert notebook.run("%sky auto status").startswith("auto is off")
    said = notebook.run("%sky auto on")
    assert said.startswith("auto is on: from now on cells run on ipython-")
    assert "`# local`" in said and "`%sky auto off`" in said
    assert "only lines with `%`, `!` or `?`" in said  # `name?` is of the notebook's own name
    assert notebook.run("%sky auto") == said


def test_what_a_cell_needs_is_sent_and_stays(auto: Notebook) -> None:
    auto.namespace["data"] = [1, 2, 3]
    auto.run("total = sum(data)")
    assert auto.run("print(total)") == "6\n"
    assert "total" not in auto.namespace


def test_it_survives_cells_that_fail(auto: Notebook) -> None:
    with pytest.raises(ZeroDivisionError):
        auto.run("1 / 0")
    with pytest.raises(SyntaxError):
        auto.run("x =")
    assert auto.run(WHERE) == "0\n"


def test_magics_that_run_code_run_it_where_they_run(auto: Notebook) -> None:
    assert auto.run(f"%%time\n{WHERE}").startswith("None\n")
    assert auto.run("%time print(__import__('os').environ.get('COMPUTE_POOL'))").startswith("None")
    assert auto.run("# local\nget_ipython().run_cell('print(1 + 1)')").startswith("2\n")


def test_turning_it_on_twice_sends_a_cell_once(auto: Notebook) -> None:
    auto.run("%sky auto on")
    assert auto.run(WHERE) == "0\n"
    auto.run("%sky auto off")
    assert auto.run(WHERE) == "None\n"


def test_without_a_cluster_it_says_how_to_have_one(auto: Notebook) -> None:
    auto.run("%sky down")
    with pytest.raises(UsageError, match="give the number of nodes"):
        auto.run("x = 1")


def test_a_cell_is_complete_when_it_was_before(auto: Notebook) -> None:
    assert auto.shell.check_complete("x = 1") == ("complete", "")
    assert auto.shell.check_complete("if x:")[0] == "incomplete"


def test_unloading_ends_it(auto: Notebook) -> None:
    auto.run("%unload_ext jupyter_sky")
    try:
        assert auto.run(WHERE) == "None\n"
    finally:
        auto.run("%load_ext jupyter_sky")


def test_what_a_frontend_runs_unseen_stays_here(kernel: Kernel) -> None:
    kernel.run("%sky up --nodes 1")
    kernel.run("%sky auto on")
    assert kernel.run(WHERE) == "0\n"
    assert kernel.run(WHERE, store_history=False) == "None\n"
    kernel.run("unseen = 1", silent=True)
    assert kernel.run("# local\nprint(unseen)") == "1\n"
