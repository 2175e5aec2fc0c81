"""Tab on a line of ours, as the rule has it and as IPython shows it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from jupyter_client.manager import start_new_kernel

from jupyter_sky.notebook.ipython.completer import completions
from jupyter_sky.notebook.options.option_type import CompletionContext
from tests.notebook.kernels import PATIENCE, let_go, new_shell

CONTEXT = CompletionContext(
    variables={"model": 1, "momentum": 2, "data": 3, "_mine": 4, "math": math, "In": []},
    body="losses = [model.step() for _ in range(3)]\nmodel = None\n",
    nodes=((0, 1), (2, 3)),
    clusters=("train", "trial"),
)


LISTS = ("head", "0-3", "0-1", "2-3")


@pytest.mark.parametrize(
    ("line", "text", "expected"),
    [
        ("%%sky --pro", "--pro", ["--provider", "--procs-per-node"]),
        ("%%sky --nodes 4 --no", "--no", []),
        ("%%sky --provider ", "", ["local", "ssh", "aws", "slurm"]),
        ("%%sky --provider=a", "a", ["aws"]),
        ("%%sky --gpu H1", "H1", ["H100", "H100-NVL"]),
        ("%%sky --gpus H20", "H20", ["H200"]),
        ("%%sky --plugin no", "no", ["none"]),
        ("%%sky --plugin torch t", "t", []),
        ("%%sky --ranks ", "", ["all", *LISTS, "0", "1", "2", "3"]),
        ("%%sky --ranks 0,", "", ["all", *LISTS, "1", "2", "3"]),
        ("%%sky --stdout n", "n", ["none"]),
        ("%%sky --stdout 2", "2", ["2-3", "2"]),
        ("%%sky --in mo", "mo", ["model", "momentum"]),
        ("%%sky --out mo", "mo", ["model", "momentum"]),
        ("%%sky --out model,mo", "mo", ["momentum"]),
        ("%%sky --gather ", "", ["losses", "model", "momentum", "data"]),
        ("%%sky --cluster tr", "tr", ["train", "trial"]),
        ("%%sky -c ", "", ["train", "trial"]),
        ("%%sky --nodes ", "", []),
        ("%%sky -", "-", ["-h"]),
        ("%sky st", "st", ["stop", "start", "status"]),
        ("%sky logs --f", "--f", ["--follow"]),
        ("%sky logs ", "", ["all", *LISTS, "0", "1", "2", "3", "--follow", "--tail"]),
        ("%sky logs 3 ", "", ["all", *LISTS, "0", "1", "2", "--follow", "--tail"]),
        ("%sky push d", "d", ["data"]),
        ("%sky pull model --ranks h", "h", ["head"]),
        ("%sky pull names --r", "--r", ["--ranks"]),
        ("%sky down ", "", ["train", "trial"]),
        ("%sky attach tri", "tri", ["trial"]),
        ("%sky restart 2", "2", ["2-3", "2"]),
        ("%sky auto ", "", ["on", "off", "status"]),
        ("%sky auto on ", "", []),
        ("%sky status -", "-", ["-h"]),
        ("%sky nothing ", "", []),
    ],
)
def test_what_a_word_can_become(line: str, text: str, expected: list[str]) -> None:
    found = completions(text, line, CONTEXT)
    assert [word for word in found if word in expected] == expected
    assert all(word.startswith("-") for word in found if word not in expected)


def test_without_a_cluster_there_are_words_only() -> None:
    assert completions("", "%sky restart ", CompletionContext()) == ["all", "head", "--cluster"]


def test_a_cell_that_does_not_compile_yet_offers_what_there_is() -> None:
    context = CompletionContext(variables={"model": 1}, body="losses = [")
    assert completions("", "%%sky --out ", context)[:1] == ["model"]


@pytest.fixture(params=[False, True], ids=["without jedi", "with jedi"])
def completer(request: pytest.FixtureRequest) -> Iterator[Any]:
    shell = new_shell()
    shell.Completer.use_jedi = request.param
    shell.user_ns["progress"] = 1
    shell.run_line_magic("load_ext", "jupyter_sky")
    yield shell.Completer
    shell.run_line_magic("unload_ext", "jupyter_sky")
    let_go(shell)


def offered(completer: Any, cell: str, cursor: int | None = None) -> list[tuple[str, str]]:
    """What Tab offers, each with the text that it takes the place of."""
    end = len(cell) if cursor is None else cursor
    with provisionalcompleter():
        return [
            (cell[each.start : each.end], each.text) for each in completer.completions(cell, end)
        ]


def test_ipython_offers_what_fits_and_nothing_else(completer: Any) -> None:
    assert offered(completer, "%%sky --pro") == [
        ("--pro", "--provider"),
        ("--pro", "--procs-per-node"),
        ("--pro", "--profile"),
    ]
    assert offered(completer, "%sky stat") == [("stat", "status")]
    assert offered(completer, "  %sky auto o") == [("o", "on"), ("o", "off")]
    assert offered(completer, "%%sky --provider=l") == [("l", "local")]


def test_the_cell_below_is_read(completer: Any) -> None:
    cell = "%%sky --nodes 2 --out pro\nprobability = 1\n"
    assert offered(completer, cell, cell.index("\n")) == [
        ("pro", "probability"),
        ("pro", "progress"),
    ]


def test_other_lines_are_left_to_ipython(completer: Any) -> None:
    assert ("progr", "progress") in offered(completer, "progr")
    assert ("progr", "progress") in offered(completer, "%%sky --nodes 2\nprogr")


def test_unloading_takes_it_away() -> None:
    shell = new_shell()
    shell.run_line_magic("load_ext", "jupyter_sky")
    shell.run_line_magic("unload_ext", "jupyter_sky")
    assert ("stat", "status") not in offered(shell.Completer, "%sky stat")
    let_go(shell)


def test_a_kernel_completes() -> None:
    manager, client = start_new_kernel(startup_timeout=PATIENCE)
    try:
        client.execute_interactive("%load_ext jupyter_sky")
        reply = client.complete("%%sky --ranks he", reply=True, timeout=PATIENCE)["content"]
        assert reply["matches"] == ["head"]
        assert (reply["cursor_start"], reply["cursor_end"]) == (14, 16)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
