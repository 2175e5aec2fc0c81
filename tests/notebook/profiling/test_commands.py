"""``%sky profile``, ``%%sky --profile`` and ``%%sky --memory``, as they are typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.options.lines import parse_cell
from tests.notebook.conftest import Notebook
from tests.waiting import until


@pytest.fixture
def one(shared_shell: Notebook) -> Notebook:
    """A notebook with a cluster of one node, which tests leave idle."""
    shared_shell.run("%sky up --nodes 1")
    return shared_shell


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("%sky profile soon", r'takes a time in seconds, .*"soon" is not one'),
        ("%sky profile 0s", r"takes a time in seconds"),
        ("%sky profile 2h", r"at most: type `%sky profile 10s`; Ctrl-C ends it earlier"),
        ("%sky profile --ranks 7", r"%sky profile --ranks: there is no rank 7"),
        ("%sky profile 1s", r"nothing is running: start a cell with `%%sky --background`"),
        ("%%sky --profile --background\npass", r"leave out --background, or look at the run with"),
        ("%%sky --memory --sh\npwd", r"--memory is for cells of Python: leave out --sh"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(one: Notebook, line: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        one.run(line)


def test_a_script_is_not_looked_into(one: Notebook) -> None:
    one.run("%%sky --sh --background\nsleep 600")
    with pytest.raises(UsageError, match="only cells and functions can be profiled"):
        one.run("%sky profile 1s")
    one.run("run = _\n%sky interrupt")
    with pytest.raises(KeyboardInterrupt):
        one.run("run.result()")


def test_a_cell_in_the_background_is_looked_at(one: Notebook) -> None:
    hot = "def hot():\n    while True:\n        pass\nhot()"
    one.run(f"%%sky --nodes 2 --cluster two --background\n{hot}")
    line = r"\d+ %  cell \[\d+\], line \d in hot: (while True:|pass)\n"
    texts: list[str] = []

    def is_hot() -> bool:
        texts.append(one.run("%sky profile 0.5s --ranks 1"))
        return re.search(line, texts[-1]) is not None

    until(is_hot)
    said = texts[-1]
    one.run("%sky interrupt\n%sky down two")
    assert re.search(r": rank 1, [\d.]+ (s|min)\b.*\.\n", said), said
    assert re.search(r"\d+ of \d+ samples came", said)


def test_memory_and_profiler_without_torch(
    one: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = one.run("%%sky --memory\nblock = bytes(1)")
    assert re.search(
        r": torch is not imported on rank 0, so this is the memory of their processes\. Rank 0 has "
        r"used most, [\d.]+ MB; its machine has [\d.]+ [MGT]B left of [\d.]+ [GT]B\.\n"
        r" +most in the cell  now +machine\n   rank 0  [\d.]+ MB",
        said,
    ), said
    one.run("%%sky --profile\n1 + 1")
    assert not list(tmp_path.iterdir())


def test_memory_with_a_number_chooses_nodes_as_before() -> None:
    assert parse_cell("--memory 8+").memory == "8+"
    assert not parse_cell("--memory 8+").show_memory
    assert parse_cell("--memory").show_memory
    assert parse_cell("--memory --ranks 0").show_memory
    assert parse_cell("--show-memory --memory 4").memory == "4"
