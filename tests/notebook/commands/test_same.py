"""``%sky vars`` and ``%sky same``, typed into a shell."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from IPython.utils.capture import capture_output

from jupyter_sky.cluster.comparison.table import NameRow
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.notebook.output.name_table import NameTable
from jupyter_sky.transport.frames import Message
from tests.notebook.conftest import Notebook


async def stop_where_ranks_are_asked(connection: Connection, op: str, **fields: Any) -> Message:
    """Press Stop when a request is made, and wait for its answer."""
    os.kill(os.getpid(), signal.SIGINT)
    return await request(connection, op, **fields)


request = Connection.request


def test_the_variables_of_the_ranks(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook.run("%sky up --nodes 2")
    assert notebook.run("%sky vars").endswith(": the ranks have no variables yet\n")
    with pytest.raises(UsageError, match="name what to compare, as in `%sky same model"):
        notebook.run("%sky same")
    notebook.run("%%sky\nx = [1, 2]\ny = '0'")
    notebook.run("%%sky --ranks 1\ny = '1'")
    lines = [line.split() for line in notebook.run("%sky vars").splitlines()]
    assert lines[0] == ["name", "type", "shape", "dtype", "device", "size", "ranks"]
    assert [(line[0], line[1], line[-2:]) for line in lines[1:]] == [
        ("x", "list", ["the", "same"]),
        ("y", "str", ["values", "differ"]),
    ]
    notebook.run("%%sky\nlarge = list(range(100_000))")
    said = notebook.run("%sky vars large").splitlines()
    assert said[1].endswith("alike, values not compared")
    assert said[2].endswith(": `%sky same large` compares the values of what is large")
    notebook.namespace["mine"] = 1
    with capture_output() as captured:
        notebook.shell.run_cell("%sky vars x nobody mine").raise_error()
    # Only what the notebook has can be sent.
    lines = ["no rank has nobody", "no rank has mine: `%sky push mine` sends the notebook's"]
    assert captured.stderr.splitlines() == lines
    assert notebook.run("%sky same nobody mine").splitlines() == [
        "nobody: no rank has this name",
        "mine: no rank has this name: `%sky push mine` sends the notebook's",
    ]
    assert notebook.run("%sky same x y").splitlines() == [
        "x: the same on ranks 0-1 (3 parts, 128 B)",
        "y: rank 1 differs from rank 0 in y",
    ]
    notebook.run("%%sky --ranks 1\nx.append(3)\ny = 1.5")
    assert notebook.run("%sky same x y --random").splitlines()[:2] == [
        "x: rank 1 differs from rank 0 in x (list 2 items on rank 0; list 3 items on rank 1), "
        "and in 1 more of 4 parts",
        "y: rank 1 differs from rank 0 in y (str 1 character on rank 0; float on rank 1)",
    ]
    notebook.run("%%sky --gather pids\nimport os\npids = os.getpid()")
    frozen = notebook.namespace["pids"][1]
    os.kill(frozen, signal.SIGSTOP)
    try:
        said = notebook.run("%sky vars x").splitlines()[-1]
        assert said.endswith(": rank 1 does not answer")
        with pytest.raises(SkyError, match=r"rank 1 of .* does not answer: `%sky where` says"):
            notebook.run("%sky same x")
        assert ": nothing is running: rank 1 does not answer: the process is" in notebook.run(
            "%sky where"
        )
        with monkeypatch.context() as stopped:
            stopped.setattr(Connection, "request", stop_where_ranks_are_asked)
            with pytest.raises(Interrupted, match="`%sky same` was stopped"):
                notebook.run("%sky same x")
    finally:
        os.kill(frozen, signal.SIGCONT)
    [row] = registry.rows()
    agent = row.machines[0]["pid"]
    os.kill(agent, signal.SIGSTOP)
    try:
        lines = notebook.run("%sky vars x").splitlines()
        assert lines == [f"{row.name}: ranks 0-1 do not answer"]
        assert notebook.stderr == ""
        assert ": ranks 0-1 are on node 0, which does not answer." in notebook.run("%sky where")
    finally:
        os.kill(agent, signal.SIGCONT)


def test_threads_cannot_be_compared_and_hold_nothing_up(notebook: Notebook) -> None:
    notebook.run(
        "%%sky --nodes 2\nimport threading\nnumber = 1\nthread = threading.Thread(target=print)\n"
        "class Writer: pass\nwriter = Writer()\nwriter.step = 2\nwriter.thread = thread\n"
        "hook = thread._invoke_excepthook"
    )
    said = {line.split()[0]: line for line in notebook.run("%sky vars").splitlines()}
    assert said["number"].endswith("the same")
    assert said["thread"].endswith("alike, values not compared")
    lines = notebook.run("%sky same number thread writer hook").splitlines()
    assert lines[0].startswith("number: the same on ranks 0-1")
    assert lines[1] == "thread: threading.Thread on ranks 0-1, which cannot be compared"
    assert lines[2].startswith("writer: the same on ranks 0-1 (3 parts")
    assert lines[2].endswith("but for writer.thread, which cannot be compared")
    assert lines[3].startswith("hook: the same on ranks 0-1")


def test_what_ranks_say_is_no_markup() -> None:
    row = NameRow("x", (0,), "<img src=x>", "[1]", "&", "cpu\x1b[2J", 8, False, None)
    table = NameTable([row], [0, 1])
    assert "<img" not in table._repr_html_()
    assert "&lt;img src=x&gt;" in table._repr_html_()
    assert "\x1b" not in repr(table)
    assert "<b>only rank 0</b>" in table._repr_html_()
