"""The guide to what is inside of a run shows curves, differences, profiles, and who waits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from tests.guides import guides
from tests.guides.guides import code, text_of
from tests.installed import skip_without

skip_without("torch")

pytestmark = pytest.mark.timeout(900)  # a whole notebook, on a machine that has other tests to do

NAME = "looking-inside"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(NAME)


@pytest.fixture(scope="module")
def done(folder: Path) -> nbformat.NotebookNode:
    # Ranks that are slow have to come to where they wait.
    return guides.done(NAME, {"--timeout 6s": "--timeout 15s"}, folder)


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "saved"])
def test_what_it_shows(fresh: bool, request: pytest.FixtureRequest) -> None:
    notebook = request.getfixturevalue("done") if fresh else guides.saved(NAME)

    def shown(beginning: str) -> str:
        return text_of(code(notebook, beginning))

    assert "loss: 0.0" in shown("%%sky --nodes 4") and "(100 logged)" in shown("%%sky --nodes 4")
    assert "<svg" in pictures(code(notebook, "%%sky --nodes 4"))
    assert re.search("399 +3 +99 +0.0", shown("table"))
    assert re.search("model .*all the same", shown("%sky vars"))
    assert re.search("x .*values differ", shown("%sky vars"))
    assert "optimizer: the same on ranks 0-3" in shown("%sky same model")
    assert "all differ from each other in other.0.weight" in shown("%sky same other")
    assert "gloo:all_reduce" in shown("%%sky --profile")
    assert "torch finds no GPU on ranks 0-3" in shown("%%sky --show-memory")
    profile = shown("slow = _")
    assert re.search(r"%  cell \[\d+\], line \d: dist.all_reduce", profile), profile
    assert "<svg" in pictures(code(notebook, "slow = _"))
    where = shown("%%sky --hang-after")
    assert re.search(r"ranks 0-1, 3 waited in barrier .* rank 2 was at `time.sleep\(600\)`", where)
    assert "nothing is left running" in shown("%sky down")


def test_the_trace_is_one_file_for_all_ranks(done: nbformat.NotebookNode, folder: Path) -> None:
    [trace] = folder.glob("trace-*.json")
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2, 3}


def test_the_saved_file_names_no_machine() -> None:
    assert guides.names_no_machine(NAME)


def pictures(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)
