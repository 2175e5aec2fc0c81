"""The guide to cells runs, and shows what its saved outputs show."""

from __future__ import annotations

import nbformat
import pytest

from tests.guides import guides
from tests.guides.guides import code, text_of
from tests.installed import skip_without

skip_without("matplotlib", "torch")

pytestmark = pytest.mark.timeout(900)  # a whole notebook, on a machine that has other tests to do

NAME = "working-with-cells"

SHOWN = {
    "%%sky --nodes 4": "rank 3 learns at 0.4",
    "steps, total": "([11, 21, 31, 41], tensor(104))",
    "steps = 0": "([0, 1, 2, 3], 0)",
    '%%sky\nconfig["model"]': "config['model']['lock'] cannot be sent",
    "%%sky\nimport matplotlib": "2.300000",
    "%%sky\nimport asyncio": "node 0 of 4\n",
    "%%sky\nimport time": "epochs: 100%",
    "%sky logs 3": "rank 3 was here",
    "%%sky\nif rank > 0": "ValueError: no data for step 0\non ranks 1-3 (node 1, node 2, node 3)",
    "try:\n    get_ipython": "2 node 2 KeyError\n3 node 3 ValueError",
    "%%sky\nimport sys": "SystemExit: the cell called sys.exit('no more data')",
    "%%sky\nimport os\nimport signal": "rank 2 is lost: it was killed by SIGKILL",
    "%%sky --stdout all\nimport torch": "rank 2 of 4 goes on",
    "%%sky --timeout 1s": "TimedOut: the time limit of 1 s is over: ranks 0-3 stopped",
    "%%sky\nepoch > 0": "True",
    "%%sky --background --out answer": "step 2",
    "second = _": "stopped after",
    "await first": "{'answer': 42}",
    "second.cancel()": "(42, True, True)",
    'f"on rank': "'on rank 0'",
    "# local": "in the notebook, with steps=0",
    '%%sky\nprint("from everyone")': "3 │ from everyone",
    "%sky down": "ended; nothing is left running",
}


@pytest.fixture(scope="module")
def done() -> nbformat.NotebookNode:
    return guides.done(NAME)


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "saved"])
def test_what_it_shows(fresh: bool, request: pytest.FixtureRequest) -> None:
    notebook = request.getfixturevalue("done") if fresh else guides.saved(NAME)
    missing = {
        beginning: text_of(code(notebook, beginning))
        for beginning, shown in SHOWN.items()
        if shown not in text_of(code(notebook, beginning))
    }
    assert missing == {}
    _strip, figure, *_ = code(notebook, "%%sky\nimport matplotlib").outputs
    assert "image/png" in figure.data


def test_the_saved_file_names_no_machine() -> None:
    assert guides.names_no_machine(NAME)
